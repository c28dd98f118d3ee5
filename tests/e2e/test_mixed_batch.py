"""Many clients at once: hits, misses, unequal lengths and one that leaves. Each gets what it would get alone."""

import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import KINDS, prompt, same

Tiny = Callable[[str], Path]


def leave_in_the_middle(daemon: Daemon, ids: list[int]) -> None:
    """Send a long request and close the connection before it is answered."""
    host, port = daemon.url.removeprefix("http://").split(":")
    body = f'{{"prompt": {ids}, "max_tokens": 200, "stream": true}}'.encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_mates_do_not_change_an_answer(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    """Every request of a mixed batch has the tokens of the same request alone, and the cache is whole afterwards."""
    rng = random.Random(7)
    with Daemon(tiny(kind), tmp_path / "data", "--prefill-chunk-size", "64", "--max-batch-size", "6") as daemon:
        known = prompt(1, 300)
        answer = daemon.complete(known, 10, return_token_ids=True)
        longer = known + answer["choices"][0]["token_ids"]
        requests = [longer + prompt(n, rng.randrange(1, 40)) for n in range(4)]
        requests += [prompt(50 + n, rng.randrange(40, 400)) for n in range(4)]
        alone = [daemon.complete(ids, 12, logprobs=0, cache_prompt=False) for ids in requests]
        leaver = threading.Thread(target=leave_in_the_middle, args=(daemon, prompt(99, 1800)))
        leaver.start()
        with ThreadPoolExecutor(len(requests)) as pool:
            together = list(pool.map(lambda ids: daemon.complete(ids, 12, logprobs=0), requests))
        leaver.join()
        assert all(same(a, b) for a, b in zip(alone, together, strict=True))
        assert all(cached(reply) >= len(longer) - 16 for reply in together[:4])
        assert all(cached(reply) == 0 for reply in together[4:])
        deadline = time.monotonic() + 20
        while daemon.stats()["requests_running"] and time.monotonic() < deadline:
            time.sleep(0.05)
        stats = daemon.stats()
        assert (stats["requests_running"], stats["leases"], stats["live_kv_bytes"]) == (0, 0, 0)
