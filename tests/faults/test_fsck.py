"""fsck, compact and migrate --check as a user runs them."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from tests.e2e.daemon import ROOT, Daemon, environment
from tests.faults.support import ALWAYS, Filled, root_only, said


def run(command: str, data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `mlxcel COMMAND --data-dir DATA`."""
    words = [sys.executable, "-m", "mlxcel.cli", command, "--data-dir", str(data), *flags]
    return subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def kinds(data: Path) -> set[str]:
    """Return the kinds of what fsck finds."""
    return {finding["kind"] for finding in json.loads(run("fsck", data, "--json").stdout)["findings"]}


def snapshot(data: Path) -> dict[str, bytes]:
    """Return every file's content, but for the lock tables."""
    return {str(p): p.read_bytes() for p in data.rglob("*") if p.is_file() and p.name != "lock.mdb"}


def test_a_healthy_directory(filled: Filled, tmp_path: Path) -> None:
    """A cleanly left directory has nothing wrong, before and after compacting, and no step is pending."""
    data = filled.copy(tmp_path / "data")
    before = snapshot(data)
    done = run("fsck", data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
    assert snapshot(data) == before
    checked = run("migrate", data, "--check")
    assert checked.returncode == 0
    assert run("migrate", data).stdout == checked.stdout
    assert "records and checkpoints in" in done.stdout
    done = run("compact", data)
    assert done.returncode == 0, done.stderr
    assert run("fsck", data).returncode == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)


def test_damage_is_named_and_repaired_on_request_only(filled: Filled, tmp_path: Path) -> None:
    """A flipped piece, a missing one, chunks without an entry and an unknown piece are each named; --repair removes them."""
    data = filled.copy(tmp_path / "data")
    env = lmdb.open(str(data / "kv"), max_dbs=8, map_size=1 << 28)
    index, table = env.open_db(b"index"), env.open_db(b"data")
    with env.begin(write=True) as txn:
        keys = [bytes(key) for key, _ in txn.cursor(index)]
        chunk = bytes(txn.get(keys[0] + bytes(4), db=table))
        txn.put(keys[0] + bytes(4), chunk[:50] + bytes([chunk[50] ^ 1]) + chunk[51:], db=table)
        txn.delete(keys[1], db=index)
        txn.put(b"x" * 32 + bytes(4), b"nobody's", db=table)
    env.close()
    before = snapshot(data)
    assert kinds(data) == {"piece_damaged", "piece_missing", "data_without_index"}
    assert run("fsck", data).returncode == 1
    assert snapshot(data) == before
    mended = run("fsck", data, "--repair")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert kinds(data) == {"piece_missing"}
    assert run("fsck", data).returncode == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert len(filled.prompts) - 2 <= filled.hits_and_rightness(daemon) < len(filled.prompts)
        daemon.flush()
        assert daemon.stop() == 0
    assert kinds(data) == set()


def spoil(file: Path) -> None:
    """Put noise over the first half of a file."""
    raw = bytearray(file.read_bytes())
    raw[: len(raw) // 2] = random.Random(1).randbytes(len(raw) // 2)
    file.write_bytes(raw)


def segments(data: Path) -> list[Path]:
    """Return the log's segments, oldest first."""
    return sorted((data / "log").glob("*.log*"))


def test_damage_before_the_newest_checkpoint_costs_no_cache(filled: Filled, tmp_path: Path) -> None:
    """fsck judges as a start does: the cache is unaffected; --repair moves the damaged part aside and every prompt hits."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:  # a second run: its checkpoint opens another segment
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stop() == 0
    before = segments(data)
    assert len(before) >= 3
    raw = bytearray(before[1].read_bytes())
    raw[len(raw) // 2] ^= 1
    before[1].write_bytes(raw)
    state = snapshot(data)
    found = run("fsck", data)
    assert found.returncode == 1
    assert f"history before the newest checkpoint is damaged: {before[1]} byte " in found.stdout
    assert "the cache is unaffected" in found.stdout
    assert "state  0 pieces" not in found.stdout
    assert kinds(data) == {"history_damaged"}
    assert snapshot(data) == state
    untouched = tmp_path / "untouched"
    shutil.copytree(data, untouched)
    with Daemon(filled.model, untouched, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
    mended = run("fsck", data, "--repair")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    aside = sorted(path.name for path in (data / "log.damaged-1").iterdir())
    assert aside == [path.name for path in before[:2]]
    assert segments(data) == before[2:]
    assert "all is well" in run("fsck", data).stdout
    replay = [sys.executable, "-m", "ops.replay", str(data), "--verify"]
    assert subprocess.run(replay, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)


@pytest.mark.parametrize("which", [pytest.param(0, id="first"), pytest.param(1, id="middle", marks=pytest.mark.slow)])
def test_a_lost_older_segment_costs_no_cache(which: int, filled: Filled, tmp_path: Path) -> None:
    """A start without it hits all the same, says so in a line and a metric; fsck names it and closes the gap on request."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stop() == 0
    before = segments(data)
    before[which].unlink()
    started = tmp_path / "started"
    shutil.copytree(data, started)
    with Daemon(filled.model, started, *ALWAYS) as daemon:
        assert daemon.stats()["log_segments_lost"] == 1
        assert 'mlxcel_prompt_cache_faults_total{kind="log_segment_lost"} 1.0' in daemon.http.get("/metrics").text
        assert said(daemon).count("older segments are gone") == 1
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stop() == 0
    assert not list(started.glob("log.damaged-*"))
    assert kinds(started) == (set() if which == 0 else {"history_damaged"})
    found = run("fsck", data)
    assert "history before the newest checkpoint is missing" in found.stdout
    assert (found.returncode, kinds(data)) == (1, {"history_missing"})
    assert run("fsck", data, "--repair").returncode == 0
    assert kinds(data) == set()
    replay = [sys.executable, "-m", "ops.replay", str(data), "--verify"]
    assert subprocess.run(replay, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stats()["log_segments_lost"] == 0


@pytest.mark.parametrize("what", ["log", "store"])
def test_unreadable_parts_are_set_aside_on_request(what: str, filled: Filled, tmp_path: Path) -> None:
    """A log or a store that can't be read is named; --repair renames it and leaves a directory that starts."""
    data = filled.copy(tmp_path / "data")
    victims = sorted((data / "log").glob("*.log*")) if what == "log" else [data / "kv" / "data.mdb"]
    for victim in victims:
        spoil(victim)
    found = run("fsck", data)
    assert found.returncode == 1
    assert ("log_damaged" if what == "log" else "store_unreadable") in found.stdout
    mended = run("fsck", data, "--repair")
    assert "set aside" in mended.stdout, mended.stdout + mended.stderr
    assert list(data.glob("*.damaged-1"))
    assert run("fsck", data, "--repair").returncode == 0
    assert run("fsck", data).returncode == 0


@pytest.mark.parametrize(("name", "kind"), [("kv", "store_unreadable"), ("log", "log_damaged")])
def test_a_file_where_a_folder_belongs(name: str, kind: str, tmp_path: Path) -> None:
    """It is named with what to do, exit code 1; --repair renames it, but leaves a link to a disk that is away."""
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_text("not a folder")
    found = run("fsck", data)
    assert found.returncode == 1
    assert f"{kind}: {data / name}: a file, not a folder" in found.stdout
    assert "move this file away" in found.stdout
    assert run("fsck", data, "--repair").returncode == 0
    assert (data / f"{name}.damaged-1").read_text() == "not a folder"
    assert run("fsck", data).returncode == 0
    (data / name).symlink_to(tmp_path / "unmounted")
    for flags in ([], ["--repair"]):
        found = run("fsck", data, *flags)
        assert (found.returncode, "mount or restore it" in found.stdout) == (1, True)
        assert (data / name).is_symlink()


def test_beside_a_running_daemon(filled: Filled, tmp_path: Path) -> None:
    """fsck reads alongside; --repair and compact refuse with exit code 3 and name the owner; nothing is disturbed."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert run("fsck", data).returncode == 0
        for command, flags in (("fsck", ["--repair"]), ("compact", [])):
            done = run(command, data, *flags)
            assert done.returncode == 3
            assert str(daemon.process.pid) in done.stderr
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)


def test_a_read_only_volume_is_told_in_a_sentence(filled: Filled, tmp_path: Path) -> None:
    """fsck reads there; --repair and compact say that the volume is read-only and what to do, and change nothing."""
    root_only()
    place = tmp_path / "volume"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        data = filled.copy(place / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert run("fsck", data).returncode == 0
        for command, flags in (("fsck", ["--repair"]), ("compact", [])):
            done = run(command, data, *flags)
            assert done.returncode == 1
            assert f"{data / 'owner.lock'} is on a volume that is mounted read-only; mount it writable" in done.stderr
            assert "Errno" not in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    """A place that is not there is wrong usage, and nothing is created."""
    for command, flags in (("fsck", []), ("compact", []), ("migrate", ["--check"])):
        assert run(command, tmp_path / "nowhere", *flags).returncode == 2
    assert os.listdir(tmp_path) == []
