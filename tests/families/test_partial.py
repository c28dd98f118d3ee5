"""States that can be cut: while no window has wrapped, forked and edited histories start inside another's state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from tests.families.checks import tokens
from tests.families.rig import Ask, Rig, reference, rig
from tests.tinymodels import write_tiny_model

WINDOW = 96
WIDER: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": WINDOW},
    "gemma4_text": {"sliding_window": WINDOW},
    "gpt_oss": {"sliding_window": WINDOW},
    "llama4": {},  # chunks of 32
}
LONG = ("gemma3_text", "gemma4_text", "gpt_oss")
EngineOf = Callable[[str], MlxEngine]


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> EngineOf:
    """Return a function from a kind to a loaded engine; windows are of 96 tokens, prefill chunks of 16."""
    made: dict[str, MlxEngine] = {}

    def get(kind: str) -> MlxEngine:
        if kind not in made:
            directory = tmp_path_factory.mktemp("models") / kind
            made[kind] = load_engine(write_tiny_model(kind, directory, overrides=WIDER.get(kind, {})))
        return made[kind]

    return get


def cut_at(warm: Rig, ids: tuple[int, ...], source: str = "snapshot", max_tokens: int = 24) -> int:
    """Ask from a session of its own; compare with a run that is split alike, bit for bit; returns the tokens cached."""
    ask = Ask(ids, max_tokens, session=f"s{len(ids)} {ids[-1]}")
    (answer,) = warm.ask(ask)
    expected = reference(warm.engine, ask, answer.cached)
    assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
    assert answer.source == (source if answer.cached else "cold")
    return answer.cached


@pytest.mark.parametrize("kind", [LONG[0], LONG[1], pytest.param(LONG[2], marks=pytest.mark.slow)])
def test_forked_and_edited_histories_start_inside_a_state(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """A talk of 88 tokens in a window of 96: forks and edits start at the last whole block they share, answers as cold.

    The answers go past the window, so the ring goes round on top of rows that were cut.
    """
    first = tokens(1, 80)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 8))
        assert cut_at(warm, (*first[:70], *tokens(2, 20)), max_tokens=40) == 64
        assert cut_at(warm, (*first[:35], *tokens(3, 60)), max_tokens=40) == 32
        assert cut_at(warm, (*first[:50], *tokens(4, 100)), max_tokens=8) == 48
        for last in (1, 2, 3, 4):
            assert cut_at(warm, (*first[:-last], *tokens(10 + last, last))) >= 64
        assert cut_at(warm, first[:60]) == 48
        assert cut_at(warm, (*first[:15], *tokens(5, 40))) == 0


def test_chunked_attention_starts_inside_its_first_chunk(engine_of: EngineOf, tmp_path: Path) -> None:
    """Llama 4, chunks of 32: 16 of 30 tokens are adopted; the answer goes into the second chunk."""
    first = tokens(1, 24)
    with rig(engine_of("llama4"), tmp_path / "data") as warm:
        warm.ask(Ask(first, 6))
        assert cut_at(warm, (*first[:20], *tokens(2, 30)), max_tokens=40) == 16
        assert cut_at(warm, first[:19]) == 16


@pytest.mark.parametrize("kind", [*LONG, "llama4"])
def test_after_the_window_has_wrapped_nothing_is_cut(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """A talk of 140 tokens: a fork at 70 is computed anew and the refusal says where it left."""
    first = tokens(1, 132)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 8, session="talk"))
        fork = Ask((*first[:70], *tokens(2, 30)), 24, session="talk")
        (answer,) = warm.ask(fork)
        assert answer.cached == 0
        assert answer.logprobs == reference(warm.engine, fork).logprobs
        assert warm.questions().stats()["reject_snapshot_diverged"] == 1


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba2", "falcon_h1", "nemotron_h"])
def test_recurrent_state_is_never_cut(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """Forks of a short talk, and prompts that part in their last four tokens, start where a state was taken or cold."""
    first = tokens(1, 40)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 4))
        assert cut_at(warm, (*first[:30], *tokens(2, 20))) == 0
        for last in (2, 3, 4):
            assert cut_at(warm, (*first[:-last], *tokens(10 + last, last))) == 0


@pytest.mark.parametrize("kind", ["gemma3_text", "llama4"])
def test_a_state_from_disk_is_cut_too(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """After a restart an edited history starts inside the state that comes from disk."""
    first = tokens(1, 24)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 6))
    with rig(engine_of(kind), tmp_path / "data") as restarted:
        assert cut_at(restarted, (*first[:20], *tokens(2, 30)), source="disk", max_tokens=40) == 16
        assert restarted.questions().stats()["disk_hits"] == 1


def test_hits_on_parts_of_one_state_decode_together(engine_of: EngineOf, tmp_path: Path) -> None:
    """Four forks at once, each cut elsewhere, have the tokens that they have alone."""
    first = tokens(1, 80)
    forks = [Ask((*first[:at], *tokens(at, 12)), 16, session=f"f{at}") for at in (20, 36, 52, 68)]
    with rig(engine_of("gemma4_text"), tmp_path / "data") as warm:
        warm.ask(Ask(first, 8))
        answers = warm.ask(*forks)
        assert [answer.cached for answer in answers] == [16, 32, 48, 64]
        for fork, answer in zip(forks, answers, strict=True):
            assert answer.tokens == reference(warm.engine, fork, answer.cached).tokens
