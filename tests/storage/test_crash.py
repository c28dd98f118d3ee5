"""A real process that writes log and tier is killed at random moments, again and again, on one data directory."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log
from storage.event_log.settings import LogSettings
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from tests.storage.doubles import plain, some_parts

CHILD = """
import os, sys
from pathlib import Path
from storage.event_log.recovery import open_log
from storage.event_log.settings import LogSettings
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.lock import DirectoryLock
from storage.spill import SpillThread
from storage.spill_options import SpillOptions
from tests.storage.doubles import some_parts

root, first = Path(sys.argv[1]), int(sys.argv[2])
lock = DirectoryLock(root)
opened = open_log(root / "log", LogSettings(segment_bytes=3_000, delay_s=0.001))
tier = LmdbTier.open(root / "kv", TierOptions(map_bytes=1 << 19, reserve_bytes=0))

def say(text):
    os.write(1, (text + "\\n").encode())  # one call, since two threads speak

def tell(outcomes):
    for outcome in outcomes:
        if not outcome.error:
            say("stored " + outcome.key.hex())

spill = SpillThread(tier, opened.writer, tell, SpillOptions(group_delay_s=0.0, group_bytes=300_000))
number = first
say("ready")
while True:
    if opened.writer.wants_checkpoint():
        opened.writer.open_segment(b"checkpoint %d" % number)
    seq = opened.writer.append(b"piece %d" % number)
    key = number.to_bytes(32, "big")
    while not spill.submit(seq, key, some_parts(number, 3_000), 24_004):
        pass
    if number % 10 == 9:
        assert opened.writer.wait_durable(seq, 10)
        say(f"durable {seq}")
        spill.flush(10)
    number += 1
"""

OPTIONS = TierOptions(map_bytes=1 << 19, reserve_bytes=0)


def run_and_kill(root: Path, first: int, delay_s: float) -> tuple[int, set[bytes]]:
    """Run the child, kill it after a while; returns the last durable number and the stored keys that it told."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(first)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    told = child.stdout.read()
    child.stdout.close()
    child.wait(10)
    durable, stored = 0, set()
    for line in told.splitlines(keepends=True):
        words = line.split()
        if not line.endswith("\n"):
            continue
        if words[0] == "durable":
            durable = int(words[1])
        else:
            stored.add(bytes.fromhex(words[1]))
    return durable, stored


def kill_rounds(root: Path, rounds: int, seed: int) -> None:
    random_ = random.Random(seed)
    first, stored, last_seq = 0, set[bytes](), 0
    for _ in range(rounds):
        durable, told = run_and_kill(root, first, random_.random() * 0.25)
        stored |= told
        report = LogReader(root / "log").verify()
        assert report.fault is None
        assert report.last_seq >= max(durable, last_seq)
        opened = open_log(root / "log", LogSettings(segment_bytes=3_000))
        opened.writer.close()
        records = list(LogReader(root / "log").records())
        assert [seq for seq, _ in records] == list(range(1, len(records) + 1))
        last_seq = len(records)
        logged = {int(payload.split()[1]) for _, payload in records if payload.startswith(b"piece")}
        tier = LmdbTier.open(root / "kv", OPTIONS)
        assert tier.set_aside is None
        inventory = tier.inventory()
        assert stored <= set(inventory)
        for key in inventory:
            number = int.from_bytes(key, "big")
            assert number in logged
            assert plain(tier.read(key)) == plain(some_parts(number, 3_000))
        tier.write_group([], [key for key in inventory if key not in stored])
        keep = sorted(stored)[-50:]
        tier.write_group([], [key for key in stored if key not in keep])
        stored = set(keep)
        tier.close()
        first = max(logged, default=first - 1) + 1


def test_kill_at_random_moments(tmp_path: Path) -> None:
    """After each of 15 kills everything that was told as durable is there, whole and right, and nothing unlogged is."""
    kill_rounds(tmp_path, 15, seed=1)


@pytest.mark.slow
def test_kill_two_hundred_times(tmp_path: Path) -> None:
    """The same for 200 kills in a row on one data directory."""
    kill_rounds(tmp_path, 200, seed=2)
