"""What a loaded model says about itself, what is refused at load, and caches that can't be kept."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache, KVCache, RotatingKVCache
from transformers import AutoTokenizer

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.errors import ModelLoadError
from mlxcel.engine.facts import lane_of
from mlxcel.engine.layout import learn_layout
from mlxcel.engine.loading import load_engine
from mlxcel.engine.prefill import prefill_chunk
from tests.engine.support import KINDS, alone, prefill, prompt, restored, same_content
from tests.tinymodels import write_tiny_model

EngineOf = Callable[..., MlxEngine]


@pytest.mark.parametrize(
    ("kind", "reuse", "lane", "bytes_per_token"),
    [
        ("llama", "prefix", "batched", 2 * 2 * 2 * 16 * 4),
        ("gemma3_text", "snapshot", "batched", 2 * 16 * 4),
        ("qwen3_next", "snapshot", "batched", 2 * 2 * 16 * 4),
        ("mamba2", "snapshot", "batched", 0),
        ("falcon_h1", "snapshot", "batched", 2 * 2 * 2 * 16 * 4),
        ("llama4", "snapshot", "sequential", 2 * 2 * 16 * 4),
    ],
)
def test_facts_come_from_the_caches(
    engine_of: EngineOf, kind: str, reuse: str, lane: str, bytes_per_token: int
) -> None:
    """How a prefix can be reused, the lane and the bytes per token follow from the cache objects."""
    facts = engine_of(kind).facts
    assert (facts.reuse, facts.lane, facts.kv_bytes_per_token) == (reuse, lane, bytes_per_token)
    assert facts.eos_token_ids == (2,)
    assert (facts.model_type, facts.vocab_size, facts.dtype) == (kind, 512, "float32")
    assert facts.lane == "batched" or "ChunkedKVCache" in facts.lane_reason


def test_context_is_the_smaller_of_model_and_flag(tmp_path: Path) -> None:
    """`ctx_size` 0 means what the model states; a larger one can't exceed it."""
    path = write_tiny_model("llama", tmp_path)
    assert [load_engine(path, ctx_size=size).facts.context_tokens for size in (0, 512, 9999)] == [2048, 512, 2048]


class Renamed(KVCache):
    """A subclass that may store anything: not known."""


@pytest.mark.parametrize("wrap", [lambda: Renamed(), lambda: CacheList(KVCache(), Renamed())])
def test_unknown_cache_class_is_served_cold(llama: MlxEngine, wrap: Callable[[], Any]) -> None:
    """A class that is not known gives reuse "none" with its name, and the sequential lane."""
    layout = learn_layout([KVCache(), wrap()])
    assert layout.reuse() == ("none", "cache class Renamed is not known, so it can't be kept")
    assert lane_of([KVCache(), wrap()], "") == ("sequential", "Renamed can't be merged into a batch")


def test_model_with_unknown_caches_still_answers(
    llama: MlxEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a model is served, in the sequential lane, with the answers of the known class; copying out is refused."""
    expected = alone(llama, prompt(20))
    path = write_tiny_model("llama", tmp_path)
    model_class = type(llama._model)
    monkeypatch.setattr(model_class, "make_cache", lambda self: [Renamed() for _ in self.layers])
    engine = load_engine(path)
    assert (engine.facts.reuse, engine.facts.lane) == ("none", "sequential")
    assert "Renamed" in engine.facts.reuse_refusal
    assert alone(engine, prompt(20)) == expected
    with pytest.raises(AssertionError, match="Renamed"):
        engine.copy_rows(prefill(engine, prompt(20)), 0, 16)


def test_kept_first_tokens_go_to_the_sequential_lane() -> None:
    """A ring that keeps its first tokens would lose them in a batch, so it decodes in turn."""
    assert lane_of([RotatingKVCache(max_size=32, keep=4)], "")[0] == "sequential"
    assert lane_of([RotatingKVCache(max_size=32)], "")[0] == "batched"


def test_caches_that_the_model_leaves_unused(
    engine_of: EngineOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's cache or slot that is never written decodes in turn, and is kept and restored around all the same."""
    expected = alone(engine_of("qwen3_next"), prompt(40))
    path = write_tiny_model("qwen3_next", tmp_path)
    model_class = type(engine_of("qwen3_next")._model)
    monkeypatch.setattr(model_class, "make_cache", lambda self: [ArraysCache(size=3), KVCache(), KVCache()])
    engine = load_engine(path)
    assert (engine.facts.reuse, engine.facts.lane) == ("snapshot", "sequential")
    assert "unused" in engine.facts.lane_reason
    assert alone(engine, prompt(40)) == expected
    back = restored(engine, prefill(engine, prompt(40)[:-1]), 32)
    assert same_content(engine, back, prefill(engine, prompt(40)[:-1]))


@pytest.mark.parametrize(
    "make",
    [lambda: RotatingKVCache(max_size=32, keep=4), ConcatenateKVCache],
    ids=["kept-first-tokens", "concatenating"],
)
def test_other_known_classes_round_trip(
    llama: MlxEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    """Classes that no tiny model uses by itself are kept exactly too."""
    path = write_tiny_model("llama", tmp_path)
    monkeypatch.setattr(type(llama._model), "make_cache", lambda self: [make() for _ in self.layers])
    engine = load_engine(path)
    live = prefill(engine, prompt(9, seed=2), prefill(engine, prompt(50)), chunk=1)
    back = restored(engine, live, 48)
    for cache in (live, back):
        prefill(engine, prompt(5, seed=3), cache, chunk=1)
    assert same_content(engine, live, back)


def _drop(path: Path, name: str) -> None:
    (path / name).unlink()


def _edit_config(path: Path, **values: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda p: _drop(p, "config.json"), "no config.json"),
        (lambda p: _drop(p, "model.safetensors"), "No safetensors found"),
        (lambda p: _edit_config(p, model_type="no_such_model"), "no_such_model"),
        (lambda p: _edit_config(p, hidden_size=128), "128"),
        (lambda p: (p / "model.safetensors").write_bytes(b"not weights"), "model.safetensors"),
        (lambda p: (p / "config.json").write_text("{"), "JSONDecodeError"),
    ],
    ids=["no-config", "no-weights", "unknown-type", "wrong-shapes", "damaged", "bad-json"],
)
def test_what_can_not_be_loaded_says_why(tmp_path: Path, damage: Callable[[Path], object], cause: str) -> None:
    """A bad model directory raises ModelLoadError with path, cause and what to do."""
    path = write_tiny_model("llama", tmp_path / "model")
    damage(path)
    with pytest.raises(ModelLoadError) as caught:
        load_engine(path)
    assert caught.value.path == str(path)
    assert cause in str(caught.value)
    assert caught.value.advice


def test_a_cause_that_is_a_sentence_gets_no_second_full_stop() -> None:
    """Causes of other libraries may end with a full stop; the message has one."""
    assert (
        str(ModelLoadError("m", "Log in if needed.", "Look.")) == "Can't load the model at m: Log in if needed. Look."
    )
    assert str(ModelLoadError("m", "no config", "Look.")) == "Can't load the model at m: no config. Look."


def test_windows_can_not_be_quantised(tmp_path: Path) -> None:
    """A KV mode that the model's caches don't support is refused by name (B014)."""
    path = write_tiny_model("gemma3_text", tmp_path)
    with pytest.raises(ModelLoadError, match="RotatingKVCache"):
        load_engine(path, kv_mode="q8g64")
    with pytest.raises(ModelLoadError, match="is unknown"):
        load_engine(path, kv_mode="q3")


def test_other_threads_are_refused(llama: MlxEngine) -> None:
    """A call from another thread than the maker's is a broken invariant, not a crash in MLX (B029)."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            llama.new_cache()
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])


def test_whole_engine_runs_on_a_thread_of_its_own(tmp_path: Path, llama: MlxEngine) -> None:
    """Loading, prefill, sampling and decoding all work on a thread that is not the main one."""
    path = write_tiny_model("llama", tmp_path)
    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(alone(load_engine(path), prompt(20))))
    thread.start()
    thread.join()
    assert answers == [alone(llama, prompt(20))]


def test_memory_is_reported(llama: MlxEngine) -> None:
    """MLX's counters and the machine's memory are there, in bytes."""
    report = llama.memory()
    assert report["machine_bytes"] >= report["active_bytes"] > 0
    assert report["peak_bytes"] >= report["active_bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_models_are_reproducible(tmp_path: Path, kind: str) -> None:
    """The same arguments write the same weights and another seed writes others."""
    one, two, other = (
        mx.load(str(write_tiny_model(kind, tmp_path / name, seed) / "model.safetensors"))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert all(mx.array_equal(one[name], two[name]) for name in one)
    assert not all(mx.array_equal(one[name], other[name]) for name in one)


def test_tiny_tokenizer_reads_any_text(tmp_path: Path) -> None:
    """The tokenizer gives any text back, and renders a chat."""
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model("llama", tmp_path))
    text = "Añb 漢字 2024\n\t{}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_prefill_keeps_no_graph(llama: MlxEngine) -> None:
    """After a chunk only the cache stays in memory: neither logits nor activations."""
    cache = llama.new_cache()
    before = mx.get_active_memory()
    prefill_chunk(llama._model, cache.layers, prompt(200))
    held = sum(layer.nbytes for layer in cache.layers)
    assert mx.get_active_memory() - before == pytest.approx(held, abs=64 * 1024)
