"""Faults that users of other servers reported, for models whose state can't be cut by tokens. Each with its number."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_lm.models.cache import KVCache

from mlxcel.engine import kinds
from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from tests.families.checks import tokens
from tests.families.rig import Ask, Rig, reference, rig
from tests.tinymodels import write_tiny_model

EngineOf = Callable[[str], MlxEngine]


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> EngineOf:
    """Return a function from a kind to a loaded engine; windows are of 32 tokens, prefill chunks of 16."""
    made: dict[str, MlxEngine] = {}

    def get(kind: str) -> MlxEngine:
        if kind not in made:
            made[kind] = load_engine(write_tiny_model(kind, tmp_path_factory.mktemp("models") / kind))
        return made[kind]

    return get


def equal_to_cold(warm: Rig, ask: Ask, decoded: tuple[int, int] = (0, 0)) -> int:
    """Ask, compare with a run without the cache that is split alike, bit for bit; returns the tokens cached."""
    (answer,) = warm.ask(ask)
    expected = reference(warm.engine, ask, answer.cached, decoded)
    assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
    return answer.cached


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "gemma4_text", "llama4"])
def test_b004_a_wrapped_ring_is_never_rewound(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """A conversation that shares 60 of 100 tokens with one whose ring has wrapped, then 96 of 100: all as cold."""
    first = tokens(1, 100)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 24))
        assert equal_to_cold(warm, Ask((*first[:60], *tokens(2, 40)), 24, session="b")) == 0
        assert equal_to_cold(warm, Ask((*first[:96], *tokens(3, 4)), 24, session="b")) == 0
        assert equal_to_cold(warm, Ask((*first, *tokens(4, 4)), 24, session="c")) == 99


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "mamba2"])
def test_b008_a_snapshot_shorter_than_the_window_is_kept_and_hit(
    engine_of: EngineOf, tmp_path: Path, kind: str
) -> None:
    """20 tokens, window 32: the same prompt and 10 more tokens start behind the snapshot, which is still there."""
    first = tokens(1, 20)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        warm.ask(Ask(first, 4))
        before = warm.questions().stats()["snapshot_entries"]
        assert equal_to_cold(warm, Ask((*first, *tokens(2, 10)), 4, session="other")) == 19
        assert warm.questions().stats()["snapshot_entries"] >= before


@pytest.mark.parametrize("kind", ["qwen3_next", "nemotron_h", "falcon_h1", "mamba2", "lfm2"])
def test_b009_recurrent_state_is_reused_only_where_it_was_captured(
    engine_of: EngineOf, tmp_path: Path, kind: str
) -> None:
    """Light A, light B, light A again: prompts that part three tokens before their end never share later state."""
    system = tokens(1, 120)
    a, b = (*system, 31, 32, 33), (*system, 41, 32, 33)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        answers = [warm.ask(Ask(ids, 8, (120,)))[0] for ids in (a, b, a)]
        assert [answer.cached for answer in answers] == [0, 120, 120]
        for ids, answer in zip((a, b, a), answers, strict=True):
            expected = reference(warm.engine, Ask(ids, 8, (120,)), answer.cached)
            assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
        assert answers[0].logprobs[0] != answers[1].logprobs[0]


def test_b011_an_unknown_cache_class_is_never_kept() -> None:
    """A class that only looks like one that can be kept, alone or in a list, is not: the exact class decides."""

    class Lookalike(KVCache):
        pass

    assert kinds.kind_of(Lookalike()) == "unknown"
    assert kinds.kind_of(KVCache()) == "rows"


@pytest.mark.parametrize("kind", ["falcon_h1", "qwen3_next", "llama"])
def test_b011_a_shared_header_is_no_hit(engine_of: EngineOf, tmp_path: Path, kind: str) -> None:
    """Unrelated prompts that share five to twelve tokens inherit nothing of each other."""
    source = random.Random(11)
    header = tokens(1, 12)
    with rig(engine_of(kind), tmp_path / "data") as warm:
        for number in range(6):
            ids = (*header[: source.randrange(5, 13)], *tokens(100 + number, 60))
            assert equal_to_cold(warm, Ask(ids, 4, session=f"s{number}")) == 0


def test_b092_single_turns_are_charged_and_freed(engine_of: EngineOf, tmp_path: Path) -> None:
    """Fifty unrelated chats are charged to the budget and freed by age; a conversation that only appends still hits."""
    model = engine_of("mamba2")
    with rig(model, tmp_path / "data", snapshot_ttl_s=1.0, disk_ttl_s=1.0, disk_write_policy="off") as warm:
        budget = 0
        for number in range(50):
            warm.ask(Ask(tokens(number, 40), 2, session=f"s{number}"))
            stats = warm.questions().stats()
            assert stats["snapshot_bytes"] <= stats["snapshot_capacity_bytes"]
            assert stats["snapshot_bytes"] >= budget
            budget = stats["snapshot_bytes"]
        held = sum(warm.engine.piece_bytes(piece) for piece in warm.parts.cache.tiers.pieces.values())
        assert held == stats["bytes"]
        time.sleep(1.1)
        while warm.parts.cache.sweep():
            pass
        assert warm.questions().stats()["bytes"] == len(warm.parts.cache.tiers.pieces) == 0
        (first,) = warm.ask(Ask(tokens(99, 40), 4, session="talk"))
        longer = Ask((*tokens(99, 40), *first.tokens, 77, 78), 2, session="talk")
        assert equal_to_cold(warm, longer, (40, 40 + len(first.tokens))) == 40 + len(first.tokens)
