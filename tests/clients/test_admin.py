"""The operator's routes against the real daemon."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import ROOT, Daemon
from tests.e2e.test_road import prompt


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with four entries, two of which share a prefix."""
    with Daemon(talker, tmp_path_factory.mktemp("admin") / "data", "--admin-tokens") as running:
        shared = prompt(1, 320)
        for n in range(2):
            running.complete(shared + prompt(10 + n, 100), 4, user="ann")
        running.complete(prompt(3, 90), 4, user="ben")
        running.complete(prompt(4, 400), 4)
        running.flush()
        yield running


def get(daemon: Daemon, path: str) -> Any:
    """GET an admin route."""
    answer = daemon.http.get(f"/admin/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(daemon: Daemon, path: str, status: int = 200, **body: Any) -> Any:
    """POST to an admin route."""
    answer = daemon.http.post(f"/admin/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_entries_are_listed_filtered_and_paged(daemon: Daemon) -> None:
    """The newest entry is first, filters take what they say, and pages join to the whole."""
    found = get(daemon, "entries")
    assert (found["total"], len(found["entries"])) == (4, 4)
    assert found["entries"][0]["tokens"] >= 400
    assert [row["session"] for row in get(daemon, "entries?session=ann")["entries"]] == ["ann", "ann"]
    pages = [get(daemon, f"entries?offset={n}&limit=1")["entries"][0]["entry"] for n in range(4)]
    assert pages == [row["entry"] for row in found["entries"]]
    largest = max(row["bytes"] for row in found["entries"])
    assert 1 <= get(daemon, f"entries?min_bytes={largest}")["total"] < 4
    assert get(daemon, "entries?older_than_s=9999")["total"] == 0
    assert get(daemon, "entries?tier=disk&model=talker")["total"] == 4
    assert daemon.http.get("/admin/entries?limit=-1").status_code == 400


def test_one_entry_shows_chain_sharers_history_and_tokens(daemon: Daemon) -> None:
    """The chain covers the entry without gaps; the sister is named with what is shared; tokens come when asked for."""
    first, second = get(daemon, "entries?session=ann")["entries"]
    shown = get(daemon, f"entries/{first['entry']}?tokens=1")
    ends = [piece["start"] + piece["tokens"] for piece in shown["chain"]]
    assert [piece["start"] for piece in shown["chain"]] == [0, *ends[:-1]]
    assert ends[-1] == shown["tokens"] == len(shown["token_ids"])
    assert shown["token_ids"][:320] == prompt(1, 320)
    assert shown["shares_with"][0] == {"entry": second["entry"], "tokens": 320}
    assert any(event["type"] == "EntryDonated" for record in shown["history"] for event in record["events"])
    assert "token_ids" not in get(daemon, f"entries/{first['entry']}")
    assert daemon.http.get("/admin/entries/999999").status_code == 404


def test_demote_promote_pin_and_delete(daemon: Daemon) -> None:
    """An entry leaves memory and comes back; a pin protects it; a dry run deletes nothing; a delete is a miss."""
    entry = get(daemon, "entries?session=ben")["entries"][0]["entry"]
    post(daemon, f"entries/{entry}/demote")
    assert get(daemon, f"entries/{entry}")["tiers"] == ["disk"]
    post(daemon, f"entries/{entry}/promote")
    deadline = time.monotonic() + 20
    while get(daemon, f"entries/{entry}")["tiers"] != ["memory", "disk"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert get(daemon, f"entries/{entry}")["tiers"] == ["memory", "disk"]
    assert post(daemon, f"entries/{entry}/promote", 409)["error"]["message"] == "Refused: in_memory."
    post(daemon, "pins", name="ben", entry=entry)
    assert get(daemon, "pins")["pins"][0]["entry"] == entry
    refused = post(daemon, "entries/delete", entries=[entry], dry_run=False)["refused"]
    assert refused == [{"subject": str(entry), "reason": "pinned"}]
    post(daemon, "pins/remove", name="ben")
    post(daemon, "pins/remove", 404, name="ben")
    assert post(daemon, "entries/delete", filter={"session": "ben"})["dry_run"] is True
    assert get(daemon, "entries?session=ben")["total"] == 1
    assert post(daemon, "entries/delete", filter={"session": "ben"}, dry_run=False)["entries"] == [entry]
    assert daemon.complete(prompt(3, 90), 1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    post(daemon, "entries/delete", 400)
    post(daemon, "entries/delete", 400, filter={"sesion": "ben"})


def mlxcel(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the daemon."""
    command = [sys.executable, "-m", "mlxcel.cli", *words, "--url", daemon.url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_commands_say_which_entry_does_not_exist(daemon: Daemon) -> None:
    """`cache rm`, dry or not, and `prefix pin` name the unknown entry and end with code 1; what is known goes on."""
    known = str(get(daemon, "entries?session=ann")["entries"][0]["entry"])
    dry, done = mlxcel(daemon, "cache", "rm", "9999"), mlxcel(daemon, "cache", "rm", "9999", "--yes")
    for found in (dry, done):
        assert (found.returncode, found.stderr) == (1, "mlxcel: there is no entry 9999\n")
        assert json.loads(found.stdout)["entries"] == []
    both = mlxcel(daemon, "cache", "rm", known, "9999")
    assert (both.returncode, json.loads(both.stdout)["entries"]) == (1, [int(known)])
    assert mlxcel(daemon, "cache", "rm", known).returncode == 0
    pinned = mlxcel(daemon, "prefix", "pin", "shop", "9999")
    assert (pinned.returncode, pinned.stderr) == (1, "mlxcel: There is no entry 9999.\n")
    free = mlxcel(daemon, "prefix", "unpin", "nobody")
    assert (free.returncode, free.stderr) == (1, "mlxcel: There is no pin nobody.\n")
    mlxcel(daemon, "prefix", "pin", "shop", known)
    kept = mlxcel(daemon, "cache", "rm", known, "--yes")
    assert (kept.returncode, kept.stderr) == (1, f"mlxcel: entry {known} is not deleted: pinned\n")
    assert mlxcel(daemon, "prefix", "unpin", "shop").returncode == 0


def test_limits_change_as_an_event(daemon: Daemon) -> None:
    """reload changes the policy in force, and the record names the caller."""
    before = get(daemon, "state")["policy"]
    now = post(daemon, "reload", max_entries=77, ttl_s=5.5)["policy"]
    assert (now["max_entries"], now["ttl_us"]) == (77, 5_500_000)
    assert get(daemon, "state")["policy"] == {**before, "max_entries": 77, "ttl_us": 5_500_000}
    record = get(daemon, "events")["events"][-1]
    assert record["events"][0]["type"] == "PolicyAdopted"
    assert record["events"][0]["software"] == {"changed_by": "this machine"}
    post(daemon, "reload", 400, max_entries=-1)
    post(daemon, "reload", 400, unknown=1)
    post(daemon, "reload", 400, disk_ttl_s=2e15)
    post(daemon, "reload", ttl_s=3600)


def test_events_stream_as_they_come(daemon: Daemon) -> None:
    """The stream sends each record after a position once, in order, and shows no tokens."""
    since = get(daemon, "events")["events"][-1]["seq"]
    sender = threading.Timer(0.3, lambda: daemon.complete(prompt(20, 50), 2))
    sender.start()
    seen: list[dict[str, Any]] = []
    with daemon.http.stream("GET", f"/admin/events/stream?since={since}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if any(event["type"] == "EntryDonated" for event in seen[-1]["events"]):
                    break
    sender.join()
    positions = [record["seq"] for record in seen]
    assert positions == sorted(set(positions))
    assert positions[0] > since
    arrived = next(e for r in seen for e in r["events"] if e["type"] == "RequestArrived")
    assert arrived["tokens"] == 50


def test_jobs_run_by_hand_and_say_how_it_went(daemon: Daemon) -> None:
    """Each job has a next run; one run by hand shows its start and no error; an unknown one is a 404."""
    jobs = {job["name"]: job for job in get(daemon, "jobs")["jobs"]}
    assert {"sweep", "checkpoint", "check", "compact"} <= set(jobs)
    for name, job in jobs.items():
        assert job["next"]
        ran = post(daemon, "jobs/run", name=name)
        assert (ran["runs"], ran["last"]["error"]) == (job["runs"] + 1, None)
    post(daemon, "jobs/run", 404, name="nothing")


def test_state_is_whole(daemon: Daemon) -> None:
    """After all of that no invariant is broken."""
    assert post(daemon, "check") == {"broken": []}
