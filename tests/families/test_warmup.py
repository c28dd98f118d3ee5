"""Warming the next turn: in idle time only, newest first, a bounded queue, and never worse than not warming."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlxcel.core import tokens as token_bytes
from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from tests.families.checks import tokens
from tests.families.rig import Answer, Ask, Rig, reference, rig
from tests.tinymodels import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MlxEngine:
    """A hybrid with recurrent state."""
    return load_engine(write_tiny_model("qwen3_next", tmp_path_factory.mktemp("models") / "qwen3_next"))


def idle(warm: Rig, most: int = 100) -> None:
    """Step the loop while there is something to warm."""
    for _ in range(most):
        if not warm.parts.loop.warmup.pending():
            return
        assert warm.parts.loop._step()


def turn(number: int, head: tuple[int, ...], seen: list[int] | None = None) -> Ask:
    """Return a first turn of 40 tokens whose next turn begins with `head`."""

    def next_turn(said: str) -> bytes:
        if seen is not None:
            seen.append(number)
        return token_bytes.from_ids(head)

    return Ask(tokens(number, 40), 4, (30,), session=f"s{number}", next_turn=next_turn)


def ask_and_warm(warm: Rig, number: int = 1, more: int = 50) -> tuple[Answer, tuple[int, ...]]:
    """Ask, and let the next turn be warmed: the answer re-rendered in other tokens."""
    head = (*tokens(number, 40), *tokens(500, more))
    (answer,) = warm.ask(turn(number, head))
    return answer, head


def test_the_next_turn_starts_behind_what_was_warmed(model: MlxEngine, tmp_path: Path) -> None:
    """All but the new message is cached, the answer is a cold run's to the bit, and warming counts as no look-up."""
    with rig(model, tmp_path / "data") as warm:
        _, head = ask_and_warm(warm)
        before = warm.questions().stats()
        idle(warm)
        after = warm.questions().stats()
        assert (after["snapshot_warmups_run"], after["snapshot_warmups_skipped"]) == (1, 0)
        assert (after["lookups"], after["hits"]) == (before["lookups"], before["hits"])
        assert after["leases"] == after["requests_running"] == 0
        ask = Ask((*head, *tokens(7, 9)), 6, (30,), session="s1")
        (answer,) = warm.ask(ask)
        assert answer.cached == len(head)
        expected = reference(model, ask, len(head))
        assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)


def test_a_request_takes_precedence_and_the_warming_comes_back(model: MlxEngine, tmp_path: Path) -> None:
    """A warming in the middle of its prefill is given up for a request, which leaves nothing behind, and then done."""
    with rig(model, tmp_path / "data") as warm:
        _, head = ask_and_warm(warm, more=100)
        for _ in range(3):
            warm.parts.loop._step()
        assert warm.parts.cache.state.requests
        other = Ask(tokens(9, 30), 4, session="other")
        (answer,) = warm.ask(other)
        assert answer.logprobs == reference(model, other).logprobs
        assert warm.questions().stats()["snapshot_warmups_run"] == 0
        idle(warm)
        assert warm.questions().stats()["snapshot_warmups_run"] == 1
        assert warm.ask(Ask((*head, 5, 6), 2, session="s1"))[0].cached == len(head)


def test_the_newest_comes_first_and_the_oldest_give_way(model: MlxEngine, tmp_path: Path) -> None:
    """Of ten answers that wait eight are warmed, the last first; the two oldest count as skipped."""
    seen: list[int] = []
    with rig(model, tmp_path / "data") as warm:
        asks = [turn(number, (*tokens(number, 40), *tokens(600, 20)), seen) for number in range(10)]
        warm.ask(*asks)
        order = [waiting.request.request_id for waiting in warm.parts.loop.warmup._waiting]
        idle(warm)
        assert len(order) == len(seen) == 8
        assert [f"r{number + 1}" for number in seen] == order[::-1]
        stats = warm.questions().stats()
        assert (stats["snapshot_warmups_run"], stats["snapshot_warmups_skipped"]) == (8, 2)


def broken(said: str) -> bytes:
    """Fail as a template might."""
    raise ValueError("the template fell over")


@pytest.mark.parametrize(
    "next_turn",
    [
        lambda said: None,
        lambda said: token_bytes.from_ids(tokens(77, 60)),
        lambda said: token_bytes.from_ids(tokens(1, 25)),
        broken,
    ],
    ids=["none", "another past", "shorter than the turn", "fault"],
)
def test_what_cannot_be_foreseen_is_skipped(
    model: MlxEngine, tmp_path: Path, next_turn: Callable[[str], bytes | None]
) -> None:
    """A warming without use leaves what was captured as it was, and the loop goes on."""
    with rig(model, tmp_path / "data") as warm:
        warm.ask(Ask(tokens(1, 40), 4, (30,), session="s1", next_turn=next_turn))
        before = warm.questions().stats()["snapshot_entries"]
        idle(warm)
        stats = warm.questions().stats()
        assert (stats["snapshot_warmups_run"], stats["snapshot_warmups_skipped"]) == (0, 1)
        assert stats["snapshot_entries"] == before
        assert warm.ask(Ask((*tokens(1, 30), *tokens(3, 12)), 2, session="s1"))[0].cached == 30


def test_a_wrong_foresight_costs_nothing(model: MlxEngine, tmp_path: Path) -> None:
    """Where the next turn does not begin as foreseen, it still starts at the end of the last one."""
    with rig(model, tmp_path / "data") as warm:
        head = (*tokens(1, 40), *tokens(500, 30))
        ask = turn(1, head)
        warm.ask(Ask(ask.ids, 4, (30, 38), session="s1", next_turn=ask.next_turn))
        idle(warm)
        assert warm.questions().stats()["snapshot_warmups_run"] == 1
        assert warm.ask(Ask((*tokens(1, 40), *tokens(501, 30)), 2, session="s1"))[0].cached == 38


def test_nothing_is_warmed_for_requests_that_store_nothing(model: MlxEngine, tmp_path: Path) -> None:
    """cache_prompt false leaves no trace, not in idle time either."""
    with rig(model, tmp_path / "data") as warm:
        ask = turn(1, (*tokens(1, 40), *tokens(500, 30)))
        warm.ask(Ask(ask.ids, 4, session="s1", next_turn=ask.next_turn, cold=True))
        assert not warm.parts.loop.warmup.pending()
        assert warm.questions().stats()["snapshot_entries"] == 0
