"""Damage to what is stored, at rest and under a running daemon: answers stay right, what is lost is counted and named."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
import zstandard

from storage.lmdb_tier.environment import DATA_FILE
from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Filled, ask, flip_one_piece, metric, said, same


def flip_bits(data: Path) -> None:
    """Flip a bit in every other KiB behind the two meta pages."""
    rng = random.Random(3)
    raw = bytearray(data.read_bytes())
    for start in range(8192, len(raw), 2048):
        raw[start + rng.randrange(1024)] ^= 1 << rng.randrange(8)
    data.write_bytes(raw)


def bad_frames(data: Path) -> None:
    """Replace stored chunks by frames that lie about their size, are empty, cut, streamed, joined, or have one bit flipped."""
    env = lmdb.open(str(data.parent), max_dbs=8, map_size=1 << 28)
    table = env.open_db(b"data")
    streamed = zstandard.ZstdCompressor().compressobj().compress(bytes(1000))
    whole = zstandard.compress(bytes(1000))
    bad = [bytes.fromhex("28b52ffde06c06060663636363"), b"", streamed, whole + whole]
    with env.begin(write=True, db=table) as txn:
        for number, (key, value) in enumerate(list(txn.cursor())):
            lies = [*bad, value[: len(value) // 2], value[:-1] + bytes([value[-1] ^ 1])]
            txn.put(key, lies[number % len(lies)] or b"\0")
    env.close()


HARMS: dict[str, Callable[[Path], object]] = {
    "cut in half": lambda data: os.truncate(data, data.stat().st_size // 2 // 4096 * 4096),
    "cut to a page": lambda data: os.truncate(data, 4096),
    "emptied": lambda data: os.truncate(data, 0),
    "overwritten": lambda data: data.write_bytes(random.Random(1).randbytes(data.stat().st_size)),
    "bits flipped": flip_bits,
    "bad frames": bad_frames,
    "removed": lambda data: shutil.rmtree(data.parent),
}


RARER = ("cut to a page", "overwritten", "removed")


@pytest.mark.parametrize("harm", [pytest.param(h, marks=pytest.mark.slow) if h in RARER else h for h in HARMS])
def test_damaged_file_at_start(harm: str, filled: Filled, tmp_path: Path) -> None:
    """A store cut, emptied, overwritten, flipped, lying or gone gives right answers, is said, and is used again at once."""
    data = filled.copy(tmp_path / "data")
    HARMS[harm](data / "kv" / DATA_FILE)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        hits = filled.hits_and_rightness(daemon)
        assert hits < len(filled.prompts)
        stats = daemon.stats()
        lost = stats["restore_failures"] + stats["disk_losses"] + stats["disk_pieces_missing"]
        assert lost > 0
        assert metric(daemon, "mlxcel_prompt_cache_faults_total") >= lost
        assert daemon.http.get("/health").status_code == 200
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.http.post("/admin/flush").json()["flushed"] is True
        assert not [line for line in said(daemon).splitlines() if "Traceback" in line]
        assert daemon.stop() == 0


def test_file_deleted_under_the_running_daemon(filled: Filled, tmp_path: Path) -> None:
    """A data file that is deleted while the daemon runs costs hits, is named once, and a new one fills up by itself."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        (data / "kv" / DATA_FILE).unlink()
        assert filled.hits_and_rightness(daemon) == 0
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        daemon.flush()
        assert daemon.stats()["disk_losses"] == 1
        assert said(daemon).count("what it held is lost") == 1
        assert daemon.stop() == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)


def test_log_damage_starts_empty(filled: Filled, tmp_path: Path) -> None:
    """A log damaged in the middle is set aside whole and said; answers are right, and pieces nobody knows are deleted."""
    data = filled.copy(tmp_path / "data")
    for segment in (data / "log").glob("*.log*"):
        raw = bytearray(segment.read_bytes())
        raw[:64] = random.Random(4).randbytes(64)
        segment.write_bytes(raw)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == 0
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        daemon.flush()
        assert "event log is damaged" in said(daemon)
        assert list(data.glob("log.damaged-*"))


def test_a_damaged_last_checkpoint_costs_nothing(filled: Filled, tmp_path: Path) -> None:
    """When the checkpoint of the last stop is damaged, the records before it give the same state."""
    data = filled.copy(tmp_path / "data")
    newest = max((data / "log").glob("*.log"))
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 255
    newest.write_bytes(raw)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)


def test_torn_log_tail_costs_the_tail_only(filled: Filled, tmp_path: Path) -> None:
    """Bytes cut off the end of the log, as by a power cut, are said; what was stored before still hits."""
    data = filled.copy(tmp_path / "data")
    newest = max((data / "log").glob("*.log"))
    with open(newest, "ab") as file:
        file.write(random.Random(2).randbytes(37))
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert "torn tail" in said(daemon)


def test_strange_files_are_left_alone(filled: Filled, tmp_path: Path) -> None:
    """Empty, temporary, unreadable and foreign files in the data directory stop nothing, count nowhere and stay."""
    data = filled.copy(tmp_path / "data")
    strange = []
    for room in (data, data / "kv", data / "log"):
        for name in ("empty", "0" * 64 + ".tmp", "README"):
            (room / name).write_bytes(b"" if name == "empty" else b"hello")
            strange.append(room / name)
        (room / ("1" * 64)).mkdir()
        (room / "dangling").symlink_to("nowhere")
        (room / "README").chmod(0)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stats()["disk_losses"] == 0
        assert daemon.stop() == 0
    assert all(path.exists() for path in strange)


def test_repeats_are_not_stored_again(filled: Filled, tmp_path: Path) -> None:
    """Hash seeds, clean stops and kills between four rounds of the same prompts: all hit, no piece is added or rewritten."""
    data = filled.copy(tmp_path / "data")
    pieces = None
    for seed in ("random", "0", "123"):
        with Daemon(filled.model, data, *ALWAYS, env={"PYTHONHASHSEED": seed}) as daemon:
            assert filled.hits_and_rightness(daemon) == len(filled.prompts)
            daemon.flush()
            stats = daemon.stats()
            assert stats["disk_writes_failed"] == 0
            now = (stats["disk_pieces"], stats["disk_live_bytes"])
            assert pieces in (None, now)
            pieces = now
            if seed == "0":
                daemon.kill()
            else:
                assert daemon.stop() == 0


def test_flipped_values_never_reach_an_answer(filled: Filled, tmp_path: Path) -> None:
    """With one stored piece flipped the request is computed from there on, the piece is named, and the rest still hits."""
    data = filled.copy(tmp_path / "data")
    key = flip_one_piece(data)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        replies = [ask(daemon, ids) for ids in filled.prompts]
        assert all(same(reply, cold) for reply, cold in zip(replies, filled.cold, strict=True))
        assert sum(cached(reply) == 0 for reply in replies) <= 1
        assert daemon.stats()["restore_failures"] == 1
        assert said(daemon).count(key[:8].hex()) >= 1
