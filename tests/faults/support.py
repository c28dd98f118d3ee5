"""What the fault tests share: prompts, answers that can be compared, and a daemon's own words."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from storage.event_log.recovery import open_log
from tests.e2e.daemon import Daemon, cached

Tiny = Callable[[str], Path]
ANSWER = 6
ALWAYS = ("--disk-restore", "always")  # so that what hits does not hang on how fast this machine is just now


def prompt(seed: int, length: int) -> list[int]:
    """Return seeded token ids that are no special tokens."""
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(length)]


def flip_one_piece(data: Path) -> bytes:
    """Flip a bit inside the first stored piece of a data directory that no daemon uses; returns its key."""
    env = lmdb.open(str(data / "kv"), max_dbs=8, map_size=1 << 28)
    table = env.open_db(b"data")
    with env.begin(write=True, db=table) as txn:
        key, value = next(iter(txn.cursor()))
        txn.put(key, value[:200] + bytes([value[200] ^ 8]) + value[201:])
    env.close()
    return bytes(key)


def ask(daemon: Daemon, ids: list[int], **more: Any) -> dict[str, Any]:
    """Ask for a few tokens with their log-probabilities; the answer must come with status 200."""
    reply = daemon.complete(ids, ANSWER, logprobs=0, return_token_ids=True, **more)
    assert 0 <= cached(reply) < len(ids)
    return reply


def ask_cold(daemon: Daemon, ids: list[int]) -> dict[str, Any]:
    """Ask past the cache."""
    reply = ask(daemon, ids, cache_prompt=False)
    assert cached(reply) == 0
    return reply


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Compare two answers by tokens, reason and log-probabilities (to 1e-4)."""
    a, b = left["choices"][0], right["choices"][0]
    if a["token_ids"] != b["token_ids"] or a["finish_reason"] != b["finish_reason"]:
        return False
    pairs = zip(a["logprobs"]["token_logprobs"], b["logprobs"]["token_logprobs"], strict=True)
    return all(abs(x - y) < 1e-4 for x, y in pairs)


def said(daemon: Daemon) -> str:
    """Return everything that daemons on this data directory have logged."""
    return daemon.log_path.read_text(errors="replace")


def metric(daemon: Daemon, name: str) -> float:
    """Return the value of a metric, the sum over its labels."""
    lines = [line.split() for line in daemon.http.get("/metrics").text.splitlines()]
    found = [float(words[-1]) for words in lines if words[0].split("{")[0] == name]
    assert found, f"no metric {name}"
    return sum(found)


class Filled:
    """A data directory that a daemon filled and left cleanly: prompts, and their answers without the cache."""

    def __init__(self, model: Path, data: Path, count: int, length: int) -> None:
        self.model, self.data = model, data
        self.prompts = [prompt(seed, length) for seed in range(count)]
        with Daemon(model, data, *ALWAYS) as daemon:
            self.cold = [ask_cold(daemon, ids) for ids in self.prompts]
            for ids in self.prompts:
                ask(daemon, ids)
            daemon.flush()
            assert daemon.stop() == 0

    def copy(self, target: Path) -> Path:
        """Copy the directory; returns the copy."""
        shutil.copytree(self.data, target)
        return target

    def hits_and_rightness(self, daemon: Daemon) -> int:
        """Ask every prompt; each answer must equal the one without the cache. Returns how many hit."""
        hits = 0
        for ids, cold in zip(self.prompts, self.cold, strict=True):
            reply = ask(daemon, ids)
            assert same(reply, cold)
            hits += cached(reply) > 0
        return hits


def log_is_whole(data: Path) -> None:
    """Assert that the log of a stopped daemon opens without damage."""
    opened = open_log(data / "log")
    opened.writer.close()


def root_only() -> None:
    """Skip where mounting or changing owners is not allowed."""
    import os

    if os.geteuid() != 0:
        pytest.skip("needs root")
