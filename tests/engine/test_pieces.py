"""Copying KV out, through bytes and back: bit for bit, never aliased, never a wrong shape."""

import threading
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from mlxcel.ports import Part
from tests.engine.support import (
    KINDS,
    next_logits,
    prefill,
    prompt,
    restored,
    same_content,
    stored,
    through_bytes,
)
from tests.tinymodels import write_tiny_model

EngineOf = Callable[..., MlxEngine]
# MLX's CPU backend multiplies experts in float32 only.
NO_EXPERTS = ("llama", "gemma3_text", "mamba2", "lfm2", "falcon_h1", "nemotron_h")
DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in KINDS), *((kind, "bfloat16") for kind in NO_EXPERTS)]
)
def test_restored_cache_gives_the_same_bits(engine_of: EngineOf, kind: str, dtype: str) -> None:
    """A cache that went through bytes gives bit-identical logits, and stays identical over a chunk and a step."""
    engine = engine_of(kind, dtype)
    live = prefill(engine, prompt(70))
    back = restored(engine, live, 64, reserve_tokens=40)
    assert same_content(engine, live, back)
    for token in (7, 8):
        assert mx.array_equal(next_logits(engine, live, token), next_logits(engine, back, token))
        for cache in (live, back):
            prefill(engine, prompt(20, seed=token), cache)
        assert same_content(engine, live, back)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [9, 31, 32, 33, 300])
def test_checkpoint_at_any_length(engine_of: EngineOf, kind: str, length: int) -> None:
    """Before, at and after the wrap of a window of 32, and past the allocation step of 256, a restore is exact."""
    engine = engine_of(kind)
    live = prefill(engine, prompt(length))
    back = restored(engine, live, length // 16 * 16)
    assert engine.cache_tokens(back) == length
    assert mx.array_equal(next_logits(engine, live, 5), next_logits(engine, back, 5))


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba2", "lfm2", "nemotron_h", "falcon_h1", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("tail", [1, 2, 3, 4])
def test_prompts_that_differ_at_the_end_share_a_checkpoint(engine_of: EngineOf, kind: str, tail: int) -> None:
    """Two prompts that differ in their last 1 to 4 tokens adopt one checkpoint and match cold prefills bit for bit."""
    engine = engine_of(kind)
    shared = prompt(48)
    checkpoint = stored(engine, prefill(engine, shared), 48)
    for seed in (1, 2):
        ending = prompt(tail, seed)
        warm, cold = engine.assemble(*checkpoint, 0), prefill(engine, shared)
        for cache in (warm, cold):
            prefill(engine, ending, cache)
        assert mx.array_equal(next_logits(engine, warm, 9), next_logits(engine, cold, 9))


def test_part_of_a_piece(llama: MlxEngine) -> None:
    """Rows cut from the middle of stored pieces are the rows that a prefill of just those tokens computed."""
    ids = prompt(96)
    long = prefill(llama, ids)
    first, second = llama.copy_rows(long, 0, 64), llama.copy_rows(long, 64, 96)
    cut = llama.assemble([(first, 0, 48)], None, 0)
    assert same_content(llama, cut, prefill(llama, ids[:48]))
    joined = llama.assemble([(first, 0, 40), (llama.copy_rows(long, 32, 64), 8, 32), (second, 0, 16)], None, 0)
    assert same_content(llama, joined, prefill(llama, ids[:80]))


def test_gap_between_runs_is_refused(llama: MlxEngine) -> None:
    """Runs that skip or repeat rows are a broken invariant, not a cache."""
    long = prefill(llama, prompt(64))
    first, second = llama.copy_rows(long, 0, 32), llama.copy_rows(long, 32, 64)
    for runs in ([(second, 0, 32)], [(first, 0, 16), (second, 0, 32)], [(first, 0, 32), (first, 0, 32)]):
        with pytest.raises(AssertionError, match="rows end at"):
            llama.assemble(runs, None, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_live_cache_never_writes_to_stored_pieces(engine_of: EngineOf, kind: str) -> None:
    """Neither the donor's nor the adopter's further steps change a stored piece (B006, B026)."""
    engine = engine_of(kind)
    donor = prefill(engine, prompt(40))
    piece = engine.copy_state(donor, 0)
    before = [bytes(part.data) for part in engine.piece_parts(piece)]
    adopters = [engine.assemble([], piece, 0) for _ in range(2)]
    for seed, cache in enumerate((donor, *adopters)):
        prefill(engine, prompt(40, seed), cache)
        next_logits(engine, cache, 3)
    assert [bytes(part.data) for part in engine.piece_parts(piece)] == before
    assert same_content(engine, engine.assemble([], piece, 0), prefill(engine, prompt(40)))


@pytest.mark.parametrize("kind", KINDS)
def test_piece_holds_only_its_own_bytes(engine_of: EngineOf, kind: str) -> None:
    """What MLX counts for a piece is what the piece says, even when the slice was contiguous (one KV head)."""
    engine = engine_of(kind)
    cache = prefill(engine, prompt(240))
    before = mx.get_active_memory()
    pieces = [engine.copy_rows(cache, first, first + 48) for first in range(0, 240, 48)]
    pieces.append(engine.copy_state(cache, 240))
    del cache
    held = mx.get_active_memory()
    total = sum(engine.piece_bytes(piece) for piece in pieces)
    del pieces
    assert held - mx.get_active_memory() == pytest.approx(total, abs=64 * 1024)
    assert before - mx.get_active_memory() > 0, "the live cache was kept alive by a piece"


def test_parts_are_views_readable_from_other_threads(engine_of: EngineOf) -> None:
    """Parts are read-only views of the piece's memory and another thread can read them (B029)."""
    engine = engine_of("falcon_h1", "bfloat16")
    piece = engine.copy_state(prefill(engine, prompt(20)), 16)
    parts = engine.piece_parts(piece)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(bytes(part.data) for part in parts))
    reader.start()
    reader.join()
    assert seen == [bytes(part.data) for part in engine.piece_parts(piece)]
    assert all(part.data.readonly and part.data.format == "B" for part in parts)
    again = {part.name: part for part in engine.piece_parts(piece)}
    for part in parts[1:]:
        here, there = (np.frombuffer(p.data, np.uint8).__array_interface__["data"][0] for p in (part, again[part.name]))
        assert here == there, f"{part.name} was copied"


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_name_their_dtype(engine_of: EngineOf, dtype: str) -> None:
    """Parts carry mlx's dtype name and exactly the bytes of their shape."""
    engine = engine_of("llama", dtype)
    part = engine.piece_parts(engine.copy_rows(prefill(engine, prompt(20)), 0, 16))[1]
    assert (part.name, part.dtype, part.shape) == ("rows.0", dtype, (4, 2, 16, 16))
    assert len(part.data) == 4 * 2 * 16 * 16 * (4 if dtype == "float32" else 2)


def _llama_parts(engine: MlxEngine) -> list[Part]:
    return engine.piece_parts(engine.copy_rows(prefill(engine, prompt(20)), 0, 16))


def _changed(parts: list[Part], name: str, **changes: object) -> list[Part]:
    fields = ("name", "dtype", "shape", "data")
    return [Part(**{f: changes.get(f, getattr(p, f)) for f in fields}) if p.name == name else p for p in parts]


def test_pieces_that_do_not_fit_are_refused(engine_of: EngineOf, tmp_path: object) -> None:
    """Wrong dtype, shape, length, version, layer count or missing parts raise ValueError with a sentence (B052)."""
    engine = engine_of("qwen3_next")
    parts = engine.piece_parts(engine.copy_state(prefill(engine, prompt(20)), 16))
    rows = next(part for part in parts if part.name == "rows.0")
    wrong_version = np.array([99, 1, 16, 20], dtype="<i4").tobytes()
    cases = [
        (_changed(parts, "rows.0", dtype="bfloat16"), "the model needs"),
        (_changed(parts, "rows.0", shape=(9, *rows.shape[1:])), "the model needs"),
        (_changed(parts, "rows.0", data=bytes(rows.data)[:-1]), "bytes for shape"),
        (_changed(parts, "meta", data=wrong_version), "layout version 99"),
        (_changed(parts, "meta", data=b""), "no readable meta"),
        ([part for part in parts if part.name != "state.0.1"], "no part state.0.1"),
        ([*parts, Part("rows.7", "float32", (1,), b"\0" * 4)], "do not match"),
        (_llama_parts(engine_of("llama")), "the model needs"),
    ]
    for wrong, reason in cases:
        with pytest.raises(ValueError, match=reason):
            engine.piece_from_parts(wrong)


def test_another_layer_count_is_refused(llama: MlxEngine, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A piece of the same model with one layer more does not fit (B052)."""
    deeper = load_engine(write_tiny_model("llama", tmp_path_factory.mktemp("deeper"), layers=3))
    piece = deeper.copy_rows(prefill(deeper, prompt(16)), 0, 16)
    with pytest.raises(ValueError, match="the model needs"):
        llama.piece_from_parts(deeper.piece_parts(piece))


def test_reserve_leaves_room(llama: MlxEngine) -> None:
    """Room asked for at once is there, so that the next chunk allocates nothing, and rows stay right."""
    piece = llama.copy_rows(prefill(llama, prompt(32)), 0, 32)
    cache = llama.assemble([(piece, 0, 32)], None, 532)
    buffers = [layer.keys.shape[2] for layer in cache.layers]
    assert all(capacity >= 532 for capacity in buffers)
    prefill(llama, prompt(500, seed=3), cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == buffers


@pytest.mark.parametrize("kv_mode", ["q8g32", "q4g32"])
def test_quantised_kv_round_trip(tmp_path_factory: pytest.TempPathFactory, kv_mode: str) -> None:
    """Quantised KV goes through bytes exactly, takes the sequential lane, and its mode is in the facts (B013, B051)."""
    engine = load_engine(_wide_heads(tmp_path_factory), kv_mode=kv_mode)
    assert (engine.facts.kv_mode, engine.facts.lane, engine.facts.reuse) == (kv_mode, "sequential", "prefix")
    live = prefill(engine, prompt(40))
    back = restored(engine, live, 32, reserve_tokens=10)
    assert mx.array_equal(next_logits(engine, live, 5), next_logits(engine, back, 5))
    plain = load_engine(_wide_heads(tmp_path_factory))
    assert plain.facts.fingerprint_parts["kv_layout"] != engine.facts.fingerprint_parts["kv_layout"]
    with pytest.raises(ValueError, match="the model needs"):
        plain.piece_from_parts(engine.piece_parts(engine.copy_rows(live, 0, 16)))


def _wide_heads(tmp_path_factory: pytest.TempPathFactory) -> object:
    return write_tiny_model("llama", tmp_path_factory.mktemp("wide"), overrides={"head_dim": 32})


def test_round_trip_keeps_a_plain_piece_plain(llama: MlxEngine) -> None:
    """A plain piece does not come back as a checkpoint, nor the reverse."""
    cache = prefill(llama, prompt(20))
    assert through_bytes(llama, llama.copy_rows(cache, 0, 16)).states is None
    assert through_bytes(llama, llama.copy_state(cache, 16)).states == ()


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("extra", [1, 31, 32, 45])
def test_window_restored_in_the_middle_of_the_ring(engine_of: EngineOf, kind: str, extra: int) -> None:
    """After single steps the ring has wrapped; a restore sums in the same order, so the bits are the same (B004)."""
    engine = engine_of(kind)
    live = prefill(engine, prompt(extra, seed=1), prefill(engine, prompt(40)), chunk=1)
    back = restored(engine, live, 32)
    for token in prompt(35, seed=2):
        assert mx.array_equal(next_logits(engine, live, token), next_logits(engine, back, token))
    assert same_content(engine, live, back)
