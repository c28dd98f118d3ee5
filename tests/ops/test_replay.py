"""The replay's commands over a recorded log: what they say, and how they exit."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.state import State
from mlxcel.core.tokens import to_ids
from ops.replay.container import BadFile, read_rows
from ops.replay.quantity import parse_size, parse_sweep
from ops.replay.source import HISTORY, History
from ops.replay.walk import Until, fold_until, moments, open_history
from storage.event_log.recovery import open_log
from storage.event_log.settings import LogSettings
from tests.ops.driver import Driver, policy

Call = Callable[..., Result]


def last_json(result: Result) -> dict[str, object]:
    """Return the last line of the output as JSON."""
    values: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return values


def test_the_short_form_prints_and_verifies(replay: Call, data_dir: Path, recorded: Driver) -> None:
    """Without a command the history is printed; with --verify it is decided again; flags may come first."""
    shown, checked = replay(data_dir), replay("--verify", data_dir, "--json")
    assert (shown.exit_code, checked.exit_code) == (0, 0)
    assert fingerprint(recorded.state) in shown.stdout
    assert last_json(checked)["verified"] is True
    assert last_json(checked)["fingerprint"] == fingerprint(recorded.state)
    assert last_json(replay(data_dir, "--json"))["records"] == len(recorded.payloads) - 1


def test_it_runs_as_a_module(data_dir: Path) -> None:
    """`python -m ops.replay DATA_DIR --verify` is a process with exit code 0, 2 where there is no log."""
    command = [sys.executable, "-m", "ops.replay"]
    fine = subprocess.run([*command, str(data_dir), "--verify"], capture_output=True, text=True, check=False)
    none = subprocess.run([*command, str(data_dir / "nothing")], capture_output=True, text=True, check=False)
    assert (fine.returncode, none.returncode) == (0, 2), fine.stderr
    assert "no event log" in none.stderr


@pytest.mark.parametrize("args", [["what-if"], ["fold", "x", "--nope"], ["--nope"], ["explain", "x"]])
def test_wrong_usage_is_2(replay: Call, args: list[str]) -> None:
    """Wrong arguments exit with 2."""
    assert replay(*args).exit_code == 2


def test_every_command_documents_its_exit_codes(replay: Call) -> None:
    """--help of the group and of each command names the exit codes."""
    for command in ([], ["fold"], ["verify"], ["explain"], ["diff"], ["what-if"], ["export"], ["import"]):
        assert "Exit codes: 0" in replay(*command, "--help").stdout


def test_fold_until_a_number_or_a_time(replay: Call, data_dir: Path, recorded: Driver) -> None:
    """`--until` with a sequence number and with that record's time give one state; without it, the last."""
    whole = last_json(replay("fold", data_dir, "--json"))
    assert whole["fingerprint"] == fingerprint(recorded.state)
    half = last_json(replay("fold", data_dir, "--until", 200, "--json"))
    assert half["fingerprint"] == fingerprint(fold_until(History(data_dir), Until(seq=200)))
    state, rest = open_history(History(data_dir))
    last = max(m.seq for m in moments(state, rest) if m.record.command.at_us <= half["at_us"])  # type: ignore[operator]
    assert last_json(replay("fold", data_dir, "--until", half["at"], "--json"))["fingerprint"] == fingerprint(
        fold_until(History(data_dir), Until(seq=last))
    )
    assert replay("fold", data_dir, "--until", "yesterday").exit_code == 2


def test_verify_collects_or_stops(replay: Call, recorded: Driver, tmp_path: Path) -> None:
    """A record whose decision differs is named; --all goes on to the others; the exit code is 1."""
    other = Driver(policy(capacity_bytes=1_000_000, write_policy="behind", disk_capacity_bytes=1_500_000))
    other.payloads = list(recorded.payloads)
    changed = 0
    for n, (_, payload) in enumerate(other.payloads):
        # Another length of an adoption, as if the code had decided otherwise then.
        if b"prefix_missed.1" in payload and changed < 2:
            other.payloads[n] = (False, payload.replace(b"cold_store", b"too_short?").replace(
                b"no_common_prefix", b"no_common_prefiX"))  # fmt: skip
            changed += 1
    assert changed == 2
    path = other.write_log(tmp_path)
    one, all_of_them = replay("verify", path, "--json"), replay("verify", path, "--all", "--json")
    assert (one.exit_code, all_of_them.exit_code) == (1, 1)
    assert one.stdout.count('"divergence"') == 1
    assert all_of_them.stdout.count('"divergence"') == 2
    assert last_json(all_of_them)["records"] == len(recorded.payloads) - 1


def test_diff_says_what_came_and_went(replay: Call, data_dir: Path) -> None:
    """Entries added and gone between two points add up to the change in number."""
    found = last_json(replay("diff", data_dir, 100, 400, "--json"))
    counts = [len(fold_until(History(data_dir), Until(seq=seq)).entries) for seq in (100, 400)]
    assert len(found["entries_added"]) - len(found["entries_gone"]) == counts[1] - counts[0]  # type: ignore[arg-type]
    assert found["policy"] == {}
    assert "inserts" in found["stats"]  # type: ignore[operator]
    same = last_json(replay("diff", data_dir, 100, 100, "--json"))
    assert same["stats"] == {}
    assert same["entries_added"] == []


def test_explain_names_the_divergence_and_what_left(replay: Call, tmp_path: Path) -> None:
    """A miss is explained by the position where the nearest entry differs, and by the evicted pieces of its own."""
    driver = Driver(policy(capacity_bytes=100 * 1100))
    first = list(range(500))
    driver.serve("first", first, [1] * 20)
    driver.serve("second", [*range(300), *range(900, 1100)], [2] * 20)
    for n in range(3):
        driver.serve(f"big{n}", [5000 + 1000 * n + i for i in range(900)])
    driver.serve("again", first)
    path = driver.write_log(tmp_path)
    second = last_json(replay("explain", path, "second", "--json"))
    assert (second["outcome"], second["reused_tokens"]) == ("hit", 288)
    assert second["candidates"][0]["common_tokens"] == 300  # type: ignore[index]
    assert second["candidates"][0]["theirs"][0] == 300  # type: ignore[index]
    assert second["candidates"][0]["ours"][0] == 900  # type: ignore[index]
    again = last_json(replay("explain", path, "again", "--json"))
    assert (again["outcome"], again["reused_tokens"]) == ("miss", 0)
    spans = sorted((piece["start"], piece["stop"]) for piece in again["left_before"])  # type: ignore[union-attr,attr-defined]
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert {piece["reason"] for piece in again["left_before"]} == {"lru"}  # type: ignore[union-attr,attr-defined]
    assert replay("explain", path, "nobody").exit_code == 2


def test_a_redacted_export_verifies_and_answers_alike(replay: Call, data_dir: Path, tmp_path: Path) -> None:
    """The export holds none of the tokens or names, verifies, and gives the same what-if as the log."""
    out = tmp_path / "shared.export"
    assert replay("export", data_dir, "--out", out, "--redact").exit_code == 0
    assert replay("verify", out).exit_code == 0
    ours, theirs = (last_json(replay("what-if", p, "--capacity", "400KB", "--json")) for p in (data_dir, out))
    assert ours == theirs
    assert all(b"chat" not in row[2] for row in read_rows(out, HISTORY))
    state, rest = open_history(History(out))
    seen = {t for m in moments(state, rest) for t in to_ids(getattr(m.record.command, "tokens", b""))}
    assert len(seen) > 1000
    assert sum(token < 1000 for token in seen) < 3
    assert out.stat().st_mode & 0o077 == 0
    assert replay("export", data_dir, "--out", out).exit_code == 2


def test_an_export_with_tokens_is_the_log(replay: Call, data_dir: Path, recorded: Driver, tmp_path: Path) -> None:
    """Unredacted, the export folds to the very same state; cut anywhere it is refused."""
    out = tmp_path / "whole.export"
    assert replay("export", data_dir, "--out", out).exit_code == 0
    assert last_json(replay("fold", out, "--json"))["fingerprint"] == fingerprint(recorded.state)
    cut = tmp_path / "cut.export"
    cut.write_bytes(out.read_bytes()[:-5])
    assert replay("verify", cut).exit_code == 1
    with pytest.raises(BadFile):
        list(History(cut))


def test_what_if_sweeps_a_history(replay: Call, data_dir: Path, tmp_path: Path) -> None:
    """A sweep gives one row a value, a CSV and a picture; more memory never lowers the end of the curve."""
    csv_file, plot_file = tmp_path / "curve.csv", tmp_path / "curve.svg"
    done = replay("what-if", data_dir, "--sweep", "capacity=100KB..40MB", "--points", 3, "--disk-capacity", "0",
                  "--csv", csv_file, "--plot", plot_file, "--workers", 1, "--json")  # fmt: skip
    points = last_json(done)["points"]
    rates = [p["result"]["token_rate"] for p in points]  # type: ignore[attr-defined]
    assert rates[0] < rates[-1]
    assert [p["value"] for p in points] == [100_000, 2_000_000, 40_000_000]  # type: ignore[attr-defined]
    assert csv_file.read_text().count("\n") == 4
    assert plot_file.read_text().startswith("<svg")


def test_settings_and_sizes_are_read() -> None:
    """Ranges ascend in equal ratios with both ends; sizes know binary and decimal units."""
    assert parse_sweep("capacity=1GiB..64GiB", 7).values == [n << 30 for n in (1, 2, 4, 8, 16, 32, 64)]
    assert parse_sweep("ttl=10,5", 7).values == [5, 10]
    assert [parse_size(t) for t in ("1.5KiB", "2MB", "7")] == [1536, 2_000_000, 7]
    for wrong in ("capacity", "speed=1..2", "ttl=5..1", "ttl=x"):
        with pytest.raises(ValueError, match=r"write|range|no size"):
            parse_sweep(wrong, 3)


def test_an_empty_history_is_an_empty_state(tmp_path: Path, replay: Call) -> None:
    """A log that holds its first checkpoint only folds to the empty state."""
    driver = Driver(policy())
    driver.payloads = driver.payloads[:1]
    assert last_json(replay("fold", driver.write_log(tmp_path), "--json"))["fingerprint"] == fingerprint(State())


def test_a_log_that_is_being_written_is_read(recorded: Driver, tmp_path: Path, replay: Call) -> None:
    """While a writer has the log open, the replay reads what is durable and changes no file."""
    opened = open_log(tmp_path / "log", LogSettings(delay_s=0.0))
    opened.writer.open_segment(recorded.payloads[0][1])
    for _, payload in recorded.payloads[1:50]:
        seq = opened.writer.append(payload)
    assert opened.writer.wait_durable(seq, 30)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    live = last_json(replay("verify", tmp_path, "--json"))
    assert (live["records"], live["verified"]) == (49, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before
    opened.writer.append(recorded.payloads[50][1])
    opened.writer.close()
    assert last_json(replay("verify", tmp_path, "--json"))["records"] == 50
