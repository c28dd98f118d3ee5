"""Checkpoints of windows that have not wrapped, cut at an earlier position."""

from collections.abc import Callable

import mlx.core as mx
import pytest

from mlxcel.engine.engine import MlxEngine
from tests.engine.support import next_logits, prefill, prompt, same_content, start, steps, through_bytes

EngineOf = Callable[..., MlxEngine]
WINDOWED = ("gemma3_text", "gpt_oss", "gemma4_text", "llama4")  # windows of 32 tokens


@pytest.mark.parametrize("kind", WINDOWED)
@pytest.mark.parametrize("length", [16, 32])
def test_a_cut_checkpoint_is_the_one_taken_there(engine_of: EngineOf, kind: str, length: int) -> None:
    """Rows and state cut at 16 and at the window's end equal a cache prefilled to there; so does what follows."""
    engine = engine_of(kind)
    donor = prefill(engine, prompt(32))
    assert engine.state_cuttable(donor)
    runs = [(through_bytes(engine, engine.copy_rows(donor, 0, 32)), 0, length)]
    whole = through_bytes(engine, engine.copy_state(donor, 32))
    cut = engine.assemble(runs, engine.cut_state(whole, length), 0)
    plain = prefill(engine, prompt(length))
    assert same_content(engine, cut, plain)
    for cache in (cut, plain):
        prefill(engine, prompt(40, seed=2), cache)
    assert mx.array_equal(next_logits(engine, cut, 5), next_logits(engine, plain, 5))


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_cut_leaves_the_stored_checkpoint_alone(engine_of: EngineOf, kind: str) -> None:
    """Cutting copies: the stored bytes stay the same and the cut piece holds only its own."""
    engine = engine_of(kind)
    whole = engine.copy_state(prefill(engine, prompt(32)), 32)
    before = [bytes(part.data) for part in engine.piece_parts(whole)]
    cut = engine.cut_state(whole, 16)
    assert engine.piece_bytes(cut) == engine.piece_bytes(whole) // 2
    assert [bytes(part.data) for part in engine.piece_parts(whole)] == before


@pytest.mark.parametrize("kind", [*WINDOWED, "qwen3_next", "mamba2", "falcon_h1", "llama"])
def test_what_can_be_cut_is_asked_of_the_objects(engine_of: EngineOf, kind: str) -> None:
    """A window that has wrapped, recurrent state, and a model without any state can't be cut."""
    engine = engine_of(kind)
    assert engine.state_cuttable(prefill(engine, prompt(32))) == (kind in WINDOWED)
    assert not engine.state_cuttable(prefill(engine, prompt(80)))


@pytest.mark.parametrize("kind", WINDOWED)
def test_an_answer_within_the_window_can_be_cut_one_past_it_cannot(engine_of: EngineOf, kind: str) -> None:
    """Decoding grows the ring in place: cuttable at 28 tokens, not after it has gone round."""
    engine = engine_of(kind)
    for answer, cuttable in ((8, True), (30, False)):
        row = start(engine, prompt(20), answer)
        steps(engine, answer)
        cache, _ = engine.finish_row(row)
        assert engine.state_cuttable(cache) == cuttable
        if cuttable:
            piece = engine.cut_state(engine.copy_state(cache, 0), 16)
            assert engine.assemble([], piece, 0).tokens == 16
