"""Requests at the same time over one cache: each gets what it would get alone (B024, B025, B026, B028)."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.test_leaving import at_rest
from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt, same


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with room for 8 answers."""
    with Daemon(talker, tmp_path_factory.mktemp("many") / "data", "--max-batch-size", "8") as running:
        yield running


def test_one_entry_serves_many_at_once(daemon: Daemon) -> None:
    """8 concurrent requests all adopt one prefix, with a cold run's answers; cancelling all leaves it a hit (B026, B028)."""
    shared = prompt(1, 200)
    daemon.complete(shared, 1)
    asks = [shared + prompt(10 + n, 20) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        warm = list(pool.map(lambda ids: daemon.complete(ids, 8, logprobs=0), asks))
    assert all(cached(reply) >= 192 for reply in warm)
    cold = [daemon.complete(ids, 8, logprobs=0, cache_prompt=False) for ids in asks]
    assert all(same(a, b) for a, b in zip(warm, cold, strict=True))

    def leave(n: int) -> None:
        body = {"prompt": shared + prompt(50 + n, 20), "max_tokens": 300, "stream": True}
        with daemon.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(8)))
    at_rest(daemon)
    assert cached(daemon.complete([*shared, 5], 1)) >= 192


def test_what_waits_is_looked_up_when_it_runs(talker: Path, tmp_path: Path) -> None:
    """An entry evicted or reset while a request waits for it is no wrong answer: the lookup is at its turn (B024)."""
    flags = ("--max-batch-size", "1", "--prefill-chunk-size", "32", "--disk-capacity-bytes", "0")
    with Daemon(talker, tmp_path / "data", *flags) as running:
        known = prompt(1, 300)
        running.complete(known, 2)
        asked = [*known, 5, 6, 7]
        cold = running.complete(asked, 8, logprobs=0, cache_prompt=False)
        for harm in ("reset", "evict"):
            blocker = threading.Thread(target=running.complete, args=(prompt(2, 2500), 40))
            blocker.start()
            time.sleep(0.1)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(running.complete, asked, 8, logprobs=0)
                if harm == "reset":
                    running.http.post("/v1/cache/reset").raise_for_status()
                else:
                    running.http.post("/admin/reload", json={"capacity_bytes": 1000}).raise_for_status()
                assert same(waiting.result(), cold)
            blocker.join()
        at_rest(running)


def test_a_read_never_meets_half_a_write(talker: Path, tmp_path: Path) -> None:
    """With memory too small for anything, the next turn sent at once equals a cold run, written or not (B025)."""
    with Daemon(talker, tmp_path / "data", "--prompt-cache-capacity-bytes", "20000") as running:
        for n in range(12):
            ids = prompt(100 + n, 500)
            running.complete(ids, 1)
            time.sleep((n % 4) * 0.03)
            warm = running.complete([*ids, 9], 4, logprobs=0)
            assert same(warm, running.complete([*ids, 9], 4, logprobs=0, cache_prompt=False))
        at_rest(running)
