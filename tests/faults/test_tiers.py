"""Memory too small for what is asked, so that disk and memory take turns: answers are those of a cold run."""

import random
import time
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Filled, Tiny, ask, ask_cold, prompt, same

TOKEN_BYTES = 512  # KV of the tiny llama: 2 layers, 2 heads of 16, keys and values, float32


def small(tokens: int, block: int = 16) -> tuple[str, ...]:
    """Return flags for a memory tier of so many tokens."""
    return (*ALWAYS, "--prompt-cache-capacity-bytes", str(tokens * TOKEN_BYTES), "--apc-block-size", str(block))


@pytest.mark.parametrize("block", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_tiers_never_overlap_within_a_block(block: int, tiny: Tiny, tmp_path: Path) -> None:
    """With only part of a prompt left in memory what is adopted is whole blocks, and the answer is the cold one."""
    base = prompt(1, 16 * 20 + 4)
    with Daemon(tiny("llama"), tmp_path / "data", *small(420, block)) as daemon:
        ask(daemon, base)
        daemon.flush()
        for seed in range(5):
            ask(daemon, prompt(100 + seed, 60 + 40 * seed))  # pushes tails of the first out of memory
            daemon.flush()
            longer = base + prompt(200 + seed, 3)
            reply = ask(daemon, longer)
            assert cached(reply) > 0
            assert cached(reply) % block == 0
            assert same(reply, ask_cold(daemon, longer))
        assert daemon.stats()["disk_hits"] > 0


def test_a_write_in_flight_is_never_read_in_part(tiny: Tiny, tmp_path: Path) -> None:
    """A prompt asked again at once, while its write is queued or under way and memory has dropped it, has the cold answer."""
    rng = random.Random(4)
    with Daemon(tiny("llama"), tmp_path / "data", *small(520)) as daemon:
        for n in range(12):
            first, other = prompt(300 + n, 480), prompt(400 + n, 480)
            ask(daemon, first)
            ask(daemon, other)
            time.sleep(rng.random() * 0.1)
            reply = ask(daemon, [*first, 7])
            assert same(reply, ask_cold(daemon, [*first, 7]))
        assert daemon.stats()["restore_failures"] == 0


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_turns_from_disk(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    """A conversation whose every turn comes back from disk says at each turn what it says cold."""
    flags = (*ALWAYS, "--prompt-cache-capacity-bytes", str(760 * TOKEN_BYTES))
    flags += ("--prompt-cache-snapshot-capacity-bytes", "14000")  # about two states
    history, noise = prompt(8, 90), 0
    with Daemon(tiny(kind), tmp_path / "data", *flags) as daemon:
        for turn in range(12):
            reply = ask(daemon, history)
            assert same(reply, ask_cold(daemon, history))
            assert turn == 0 or cached(reply) > 0
            history = history + reply["choices"][0]["token_ids"] + prompt(500 + turn, 12)
            noise += 1
            ask(daemon, prompt(600 + noise, 700))
            daemon.flush()
        assert daemon.stats()["disk_hits"] > 5


@pytest.mark.parametrize(
    ("flags", "hits"), [(("--no-prompt-cache",), 0), (("--no-cache-prompt",), 0), (("--disk-write-policy", "off"), 8)]
)
def test_a_start_without_the_cache_takes_nothing_from_it(
    flags: tuple[str, ...], hits: int, filled: Filled, tmp_path: Path
) -> None:
    """One start with the cache switched off, or with writing switched off, leaves what is stored to the starts after it."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS, *flags) as daemon:
        assert filled.hits_and_rightness(daemon) == hits
        ask(daemon, prompt(999, 300))
        assert daemon.http.post("/admin/check").json() == {"broken": []}
        assert daemon.stats()["disk_fault"] == ""
        assert daemon.stop() == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert cached(ask(daemon, prompt(999, 300))) == 0
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
