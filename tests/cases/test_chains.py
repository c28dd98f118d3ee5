"""Reported faults of chains of blocks (B062, B095, B099), in the core alone."""

import random
from typing import Any

import pytest

import mlxcel.core.decide.donate as donating
from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import decode_state, encode_state
from mlxcel.core.keys import NamespaceKey
from tests.core.world import World, brief


@pytest.mark.parametrize("hole", [1, 5, 10])
def test_a_hole_ends_the_chain(hole: int) -> None:
    """When the k-th of ten pieces could not be written, a start reuses k - 1, counts no more, and fills up later (B062)."""
    world = World(write_policy="behind")
    world.store(range(80))
    queued = [blob.id for blob in world.state.blobs.values() if blob.disk_state == 1]
    assert len(queued) == 10
    results = [
        cmd.SpillResult(blob, 0, "no room") if at == hole else cmd.SpillResult(blob, 80)
        for at, blob in enumerate(queued, start=1)
    ]
    world.do(cmd.RecordSpills(at_us=world.at_us, results=results))
    world.restart()
    found = brief(world.adopt(range(90)))
    assert found[0][:3:2] == ("hit", 8 * (hole - 1)) if hole > 1 else found[0][0] == "miss"
    if hole > 1:
        world.do(cmd.RecordRestore(at_us=world.at_us, request="r2"))
    assert world.state.disk_bytes == 80 * (hole - 1)
    world.donate("r2")
    world.write_all()
    world.restart()
    assert brief(world.adopt(range(90)))[0][:3:2] == ("hit", 88)


def test_a_very_deep_tree() -> None:
    """A prompt of 5,000 nodes one below the other is found, checkpointed and dropped without recursion (B095)."""
    key = NamespaceKey("model", block_size=1)
    world = World(key=key, capacity_bytes=10**7, block_size=1, segment_tokens=1, min_prefix_tokens=1)
    ids = list(range(5000))
    world.store(ids)
    assert len(world.state.nodes) >= 5000
    world.state = decode_state(encode_state(world.state))
    assert world.adopt([*ids, 1])[0].length == 5000
    world.do(cmd.EndRequest(at_us=world.at_us, request="r2", outcome="cancelled"))
    world.do(cmd.ResetCache(at_us=world.at_us))
    assert len(world.state.nodes) == 1, "the root alone"
    assert not world.state.blobs
    assert world.state.memory_bytes[False] == 0


def test_equal_digests_of_other_tokens_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With entry digests of four values only, 300 prompts find just the tokens that are really shared (B099)."""
    whole: Any = donating.entry_digest  # type: ignore[attr-defined]
    monkeypatch.setattr(donating, "entry_digest", lambda *a, **k: bytes(31) + bytes([whole(*a, **k)[0] % 4]))
    rng = random.Random(5)
    world = World(capacity_bytes=10**6, max_entries=1000)
    told: list[list[int]] = []
    for _ in range(300):
        base = rng.choice(told)[: rng.randrange(1, 24)] if told and rng.random() < 0.6 else []
        ids = base + [rng.randrange(4) for _ in range(24 - len(base))]
        event = world.adopt(ids)[0]
        length = getattr(event, "length", 0)
        common = max((shared(ids, other) for other in told), default=0)
        assert length <= common
        world.donate(f"r{world.asked}")
        told.append(ids)
    assert world.state.counters["hits"] > 50


def shared(left: list[int], right: list[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
