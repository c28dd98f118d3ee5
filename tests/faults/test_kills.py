"""A real daemon is killed at random moments, again and again, on one data directory."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Tiny, ask, ask_cold, prompt, same

SHARED = prompt(1000, 96)


class Known:
    """What the rounds so far have asked: prompts, their answers past the cache, and those that were flushed."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.cold: dict[int, dict[str, Any]] = {}
        self.flushed: set[int] = set()
        self.found = 0  # times that a flushed prompt was asked after a kill and hit


def work_until_killed(daemon: Daemon, known: Known, first: int) -> None:
    """Ask new prompts and flush now and then, until the daemon is gone."""
    number = first
    try:
        while True:
            ids = SHARED + prompt(number, 120)
            known.prompts.append(ids)
            index = len(known.prompts) - 1
            known.cold[index] = ask_cold(daemon, ids)
            ask(daemon, ids)
            number += 1
            if number % 3 == 0:
                answer = daemon.http.post("/admin/flush").json()
                if answer.get("flushed") is True:
                    known.flushed.update(range(first, index + 1))
    except (httpx.HTTPError, KeyError):
        return


def check(daemon: Daemon, known: Known, some: list[int]) -> None:
    """Every flushed prompt hits with all its whole blocks; every answer equals the one past the cache."""
    for index in some:
        if index not in known.cold:
            continue
        reply = ask(daemon, known.prompts[index])
        assert same(reply, known.cold[index]), f"prompt {index} is answered otherwise"
        if index in known.flushed:
            assert cached(reply) >= 192, f"prompt {index} was flushed and is lost"
            known.found += 1


def rounds(model: Path, data: Path, count: int, seed: int) -> None:
    """Start, check what is known, work, kill; `count` times."""
    rng = random.Random(seed)
    known = Known()
    for _ in range(count):
        with Daemon(model, data, *ALWAYS) as daemon:
            recent = list(range(max(0, len(known.prompts) - 6), len(known.prompts)))
            older = rng.sample(range(len(known.prompts)), min(3, len(known.prompts)))
            check(daemon, known, recent + older)
            assert not daemon.http.get("/v1/cache/stats").json()["disk_losses"]
            worker = threading.Thread(target=work_until_killed, args=(daemon, known, len(known.prompts)))
            worker.start()
            time.sleep(rng.random() * 0.8)
            daemon.kill()
            worker.join(60)
            assert not worker.is_alive()
    assert known.flushed, "nothing was ever flushed"
    with Daemon(model, data, *ALWAYS) as daemon:
        check(daemon, known, list(range(len(known.prompts)))[-60:])
        assert daemon.stats()["restore_failures"] == 0
        assert daemon.stop() == 0
    print(f"{count} kills, {len(known.prompts)} prompts, {len(known.flushed)} flushed, found again {known.found} times")


def test_killed_at_random_moments(tiny: Tiny, tmp_path: Path) -> None:
    """After each of 6 kills every flushed prompt hits and no answer differs from one past the cache."""
    rounds(tiny("llama"), tmp_path / "data", 6, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("llama", 120), ("qwen3_next", 80)])
def test_killed_two_hundred_times(kind: str, count: int, tiny: Tiny, tmp_path: Path) -> None:
    """The same for 200 kills, on a model that is cut by tokens and on one that is kept by snapshots."""
    rounds(tiny(kind), tmp_path / "data", count, seed=2)
