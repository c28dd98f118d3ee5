"""Limits of memory and disk hold at every moment, whatever path the bytes take, over thousands of prompts."""

import random
from pathlib import Path

import pytest

from benchmarks import workloads
from benchmarks.disk_lab import DiskLab

KV_BYTES = 64


@pytest.mark.parametrize("count", [1_000, pytest.param(4_500, marks=pytest.mark.slow)])
def test_thousands_of_unique_prompts(count: int, tmp_path: Path) -> None:
    """Unique prompts, continued ones and restores never take a tier beyond its capacity, by the state and by what is held."""
    rng = random.Random(3)
    memory, disk = 600_000, 1_500_000
    lab = DiskLab(tmp_path, KV_BYTES, memory_bytes=memory, disk_bytes=disk)
    recent: list[list[int]] = []
    for number in range(count):
        base = rng.choice(recent) if recent and rng.random() < 0.3 else []
        tokens = base + workloads.ids(f"unique-{number}", rng.randint(20, 700))
        lab.turn(tokens, workloads.ids(f"said-{number}", 9), session=f"s{number % 50}")
        recent = [*recent[-60:], tokens[:2_000]]
        state = lab.cache.state
        assert state.memory_bytes[False] <= memory
        assert state.disk_bytes <= disk
        if number % 50 == 0:
            held = sum(lab.engine.piece_bytes(piece) for piece in lab.cache.tiers.pieces.values())
            assert held == state.memory_bytes[False]
            lab.settle()
            assert lab.gauges()["disk_live_bytes"] <= disk
    lab.settle()
    counters = lab.cache.state.counters
    assert counters["hits"] > count // 10
    assert counters.get("disk_hits", 0) > 0
    assert lab.gauges()["disk_live_bytes"] == lab.cache.state.disk_bytes
    lab.close()


def test_a_growing_conversation_leaves_no_older_selves(tmp_path: Path) -> None:
    """Forty turns of one conversation keep one copy of its tokens and one entry's worth of bytes, not one a turn."""
    lab = DiskLab(tmp_path, KV_BYTES)
    history: list[int] = []
    for turn in range(40):
        history += workloads.ids(f"said-{turn}", 100)
        lab.turn(history, workloads.ids(f"answer-{turn}", 28), session="one")
        history += workloads.ids(f"answer-{turn}", 28)
    lab.settle()
    assert lab.cache.state.memory_bytes[False] <= len(history) * KV_BYTES
    assert lab.gauges()["disk_live_bytes"] <= len(history) * KV_BYTES * 1.2
    lab.close()
