"""The diagnosis finds each planted cause, and only it, and its figures are right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxcel.cli import main as mlxcel
from mlxcel.core.keys import ANONYMOUS_SESSION
from mlxcel.core.tokens import from_ids
from ops.diagnose.__main__ import diagnose as command
from ops.diagnose.align import compare
from ops.diagnose.report import Diagnosis, diagnose, lines
from tests.ops import planted
from tests.ops.driver import Driver


def run(driver: Driver, tmp_path: Path, with_text: bool = True, instances: int = 1) -> Diagnosis:
    """Diagnose a driver's log."""
    return diagnose(driver.write_log(tmp_path), planted.text_of if with_text else None, instances)


@pytest.mark.parametrize("with_text", [True, False], ids=["tokenizer", "no tokenizer"])
@pytest.mark.parametrize("name", planted.PLANTED)
def test_a_planted_cause_is_found_and_only_it(name: str, with_text: bool, tmp_path: Path) -> None:
    """Each synthetic log gives exactly the cause that was planted, with evidence and advice."""
    cause, make = planted.PLANTED[name]
    found = run(make(), tmp_path, with_text).findings
    assert [one.cause for one in found] == [cause], lines(run(make(), tmp_path / "again", with_text))
    assert found[0].requests >= 3
    assert found[0].evidence[0].request.startswith("r")
    assert found[0].advice
    assert found[0].tokens > 0 or cause == "session_keys_change"


def test_a_healthy_log_gives_no_finding(tmp_path: Path) -> None:
    """Conversations that reuse what they can are left in peace; all conditions hold."""
    found = run(planted.healthy(), tmp_path)
    assert found.findings == []
    assert found.token_rate > 0.8
    assert all(condition.holds for condition in found.conditions)
    assert found.conditions[2].value == 5.0


@pytest.mark.parametrize("session", ["one key", ANONYMOUS_SESSION])
def test_one_long_system_prompt_has_its_share(session: str, tmp_path: Path) -> None:
    """Four questions under one long system prompt show its share, whether or not they name one session."""
    driver = Driver(planted.policy())
    for n, question in enumerate(["what is up?", "why is that?", "how so, please?", "tell me more"]):
        driver.serve(f"r{n}", planted.ids_of(planted.SYSTEM + "\nuser: " + question), list(b"well"), session=session)
    found = run(driver, tmp_path)
    share = found.conditions[0]
    assert share.holds is True
    assert share.value is not None
    assert share.value > 0.9
    assert "  yes  system prompt's share of the input: 0.9" in "\n".join(lines(found))


def test_a_share_that_the_log_cannot_tell_is_not_known(tmp_path: Path) -> None:
    """The same prompt over and over shows no end of the system prompt: the share is unknown, neither 0 nor a no."""
    driver = Driver(planted.policy())
    for n in range(4):
        driver.serve(f"r{n}", planted.ids_of(planted.SYSTEM), list(b"well"), session=ANONYMOUS_SESSION)
    found = run(driver, tmp_path)
    assert (found.conditions[0].value, found.conditions[0].holds) == (None, None)
    assert "system prompt's share of the input: not known" in "\n".join(lines(found))


def test_evidence_shows_place_and_text(tmp_path: Path) -> None:
    """The first token that differs is named, with the text around it."""
    found = run(planted.trailing_whitespace(), tmp_path).findings[0]
    assert found.evidence[0].position == len(planted.SYSTEM) + 1
    texts = {found.evidence[0].ours_text[2:4], found.evidence[0].theirs_text[2:4]}
    assert texts == {" \n", "\nu"}


@pytest.mark.parametrize(
    ("make", "kind"),
    [(planted.timestamp, "a time"), (planted.request_id, "id"), (planted.user_name, "a name")],
    ids=["time", "id", "name"],
)
def test_the_kind_of_value_is_told(make: Callable[[], Driver], kind: str, tmp_path: Path) -> None:
    """With a tokenizer the changing value is called a time, an id or a name."""
    assert kind in run(make(), tmp_path).findings[0].detail


def test_the_drift_of_tools_is_told(tmp_path: Path) -> None:
    """With a tokenizer the diagnosis says that it is the tools that drift."""
    assert "tool schemas" in run(planted.template_drift(), tmp_path).findings[0].detail


def test_rolling_overlap_falls_to_the_system_share(tmp_path: Path) -> None:
    """The overlap per turn falls to the system prompt's share of the prompt."""
    figures = run(planted.rolling_context(), tmp_path).findings[0].figures
    assert abs(min(figures["overlap_per_turn"]) - figures["system_share"]) < 0.1


def test_the_capacity_named_is_enough_and_half_is_not(tmp_path: Path) -> None:
    """A real run at the capacity that the finding names loses nothing more; the recorded one did."""
    found = run(planted.capacity_evicts(), tmp_path).findings[0]
    enough = found.figures["enough"]
    roomy = planted.chats(Driver(planted.policy(capacity_bytes=enough)))
    unlimited, cramped = planted.healthy(), planted.capacity_evicts()
    best = sum(unlimited.hits.values())
    assert sum(roomy.hits.values()) >= 0.95 * best
    assert sum(cramped.hits.values()) + found.tokens == best


def test_dilution_is_found_where_there_are_machines(tmp_path: Path) -> None:
    """Over N machines the random rate falls with N though the quoted formula rises, and routing by session does not."""
    found = run(planted.healthy(), tmp_path, instances=4)
    assert [one.cause for one in found.findings] == ["dilution"]
    assert "no bound" in found.findings[0].detail
    rates = [s.random_rate for s in found.spread]
    assert rates == sorted(rates, reverse=True)
    quoted = [s.quoted_bound for s in found.spread]
    assert quoted == sorted(quoted)
    assert found.spread[-1].sticky_rate > found.spread[-1].random_rate


def test_causes_rank_by_what_they_cost(tmp_path: Path) -> None:
    """With two causes in one log, the one that costs more comes first."""

    def both(chat: planted.Chat, number: int) -> list[int]:
        told = [m.title() if at % 2 else m for at, m in enumerate(chat.messages)]
        return planted.ids_of(planted.SYSTEM + "".join(told))

    driver = planted.chats(Driver(planted.policy(max_entries=4)), both)
    found = run(driver, tmp_path).findings
    assert {one.cause for one in found} == {"history_rewritten", "entries_evict"}
    assert found[0].tokens >= found[1].tokens


def test_differences_are_measured() -> None:
    """An insertion, a deletion and a change are found at their place with their lengths."""
    base = list(range(100))
    met = [
        compare(from_ids(ours), from_ids(base))
        for ours in ([*base[:30], 500, 501, *base[30:]], [*base[:30], *base[50:]], [*base[:30], 500, *base[31:]])
    ]
    assert [(m.prefix, m.ours, m.theirs, m.meets) for m in met] == [(30, 2, 0, 70), (30, 0, 20, 50), (30, 1, 1, 69)]


def test_the_command_prints_and_exits(tmp_path: Path) -> None:
    """0 where nothing was found, 1 where something was, 2 without a log; --json is one object."""
    runner = CliRunner()
    fine = runner.invoke(command, [str(planted.healthy().write_log(tmp_path / "fine"))])
    bad = runner.invoke(command, [str(planted.timestamp().write_log(tmp_path / "bad")), "--json"])
    none = runner.invoke(command, [str(tmp_path / "none")])
    assert none.stderr.startswith("mlxcel diagnose: ")
    assert (fine.exit_code, bad.exit_code, none.exit_code) == (0, 1, 2)
    assert "nothing found" in fine.stdout
    forwarded = runner.invoke(mlxcel, ["diagnose", str(tmp_path / "fine")])
    assert (forwarded.exit_code, forwarded.stdout) == (0, fine.stdout)
    assert json.loads(bad.stdout)["findings"][0]["cause"] == "changing_value"
