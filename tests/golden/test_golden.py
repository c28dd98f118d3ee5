"""Every released format stays readable: golden logs fold to the state that was recorded with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.policy import LOGIC_VERSION
from mlxcel.core.redecide import verify
from mlxcel.core.stats import cache_stats
from ops.replay.source import History
from ops.replay.walk import Until, fold_until, moments, open_history
from storage.event_log.segment import list_segments

HERE = Path(__file__).resolve().parent
LOGS = sorted(path.name for path in HERE.glob("log-v*"))


def expected(name: str) -> dict[str, Any]:
    """Return what was recorded with the log."""
    told: dict[str, Any] = json.loads((HERE / name / "expected.json").read_text(encoding="utf-8"))
    return told


def test_there_is_a_golden_log() -> None:
    """The first format has its log."""
    assert "log-v1" in LOGS


@pytest.mark.parametrize("name", LOGS)
def test_it_folds_to_what_was_recorded(name: str) -> None:
    """The fold has the recorded statistics, a sound state, and the recorded fingerprint."""
    told = expected(name)
    state = fold_until(History(HERE / name), Until())
    assert broken_invariants(state) == []
    stats = cache_stats(state)
    assert {key: stats[key] for key in told["stats"]} == told["stats"]
    assert fingerprint(state) == told["fingerprint"]


@pytest.mark.parametrize("name", LOGS)
def test_it_verifies_where_the_logic_is_the_same(name: str) -> None:
    """All records of today's logic are decided alike; older ones are folded, and no record is lost."""
    told = expected(name)
    _, decided, found = verify(History(HERE / name), stop_at_first=False)
    assert found == []
    assert decided == (told["records"] if told["logic_version"] == LOGIC_VERSION else 0)


@pytest.mark.parametrize("name", LOGS)
def test_each_segment_replays_alone(name: str) -> None:
    """Beginning at any checkpoint gives the same end as beginning at the first."""
    ends = set()
    logged = list(History(HERE / name))
    starts = [n for n, one in enumerate(logged) if one.checkpoint]
    assert len(starts) == len(list_segments(HERE / name / "log")) > 1
    for start in starts:
        state, rest = open_history(logged[start:])
        for _ in moments(state, rest):
            pass
        ends.add(fingerprint(state))
    assert ends == {expected(name)["fingerprint"]}


def test_the_first_log_holds_every_kind_of_record() -> None:
    """All commands and events of the first version are in its log, so that none can change unseen."""
    told = expected("log-v1")
    assert len(told["commands"]) >= 19
    assert len(told["events"]) >= 33
    commands = {t.__name__ for t in cmd.AnyCommand.__args__}
    events = {t.__name__ for t in ev.AnyEvent.__args__}
    assert set(told["commands"]) <= commands
    assert set(told["events"]) <= events
