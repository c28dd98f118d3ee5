"""Adopt, seal, donate, end: exact lists of events."""

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from tests.core.world import World, brief


def test_first_request_misses_and_donates_segments() -> None:
    """A cold prompt of 22 tokens is kept as whole blocks: segments of 8, 8 and 4; the last 2 tokens are not."""
    world = World()
    assert brief(world.adopt(range(20))) == [("miss", "cold_store", 0)]
    assert brief(world.donate("r1", [90, 91])) == [
        ("sealed", 2, 1, 0, 8), ("sealed", 3, 2, 8, 8), ("sealed", 4, 3, 16, 4), ("kept", 4, 20),
        ("donated", 1, 4, 20, 0),
    ]  # fmt: skip


def test_next_turn_adds_only_what_is_new() -> None:
    """The second turn adopts the first and seals only after it."""
    world = World()
    world.store(range(20))
    assert brief(world.adopt(range(30))) == [("hit", 4, 20, "memory", [])]
    assert brief(world.donate("r2")) == [
        ("sealed", 5, 4, 20, 8), ("kept", 5, 28), ("donated", 2, 5, 28, 0),
    ]  # fmt: skip


def test_whole_prompt_hit_leaves_a_token_to_compute() -> None:
    """The same prompt again adopts one block less, since the cap of total - 1 falls inside the last block (B001)."""
    world = World()
    world.store(range(20))
    assert brief(world.adopt(range(20))) == [("hit", 3, 16, "memory", [])]
    assert brief(world.adopt(range(21))) == [("hit", 4, 20, "memory", [])]
    assert brief(world.adopt(range(19))) == [("hit", 3, 16, "memory", [])]


def test_equal_sequence_replaces_its_entry() -> None:
    """The same tokens of the same session are one entry; another session's stand beside it and cost no bytes."""
    world = World()
    first = world.store(range(20))
    before = dict(world.state.memory_bytes)
    world.adopt(range(20))
    assert brief(world.donate("r2")) == [("kept", 4, 20), ("donated", 2, 4, 20, first)]
    assert world.store(range(20), session="you") == 3
    assert list(world.state.entries) == [2, 3]
    assert world.state.memory_bytes == before


def test_divergence_splits_a_segment_without_moving_bytes() -> None:
    """A prompt that leaves inside a segment makes a head of its shared part; blobs stay as they were."""
    world = World()
    world.store(range(16))
    world.adopt([*range(12), 90, 91, 92, 93])
    assert brief(world.donate("r2")) == [
        ("split", 3, 4, 4), ("sealed", 5, 4, 12, 4), ("kept", 5, 16), ("donated", 2, 5, 16, 0),
    ]  # fmt: skip
    assert world.state.nodes[3].blob == world.state.nodes[4].blob
    assert world.state.memory_bytes[False] == 200


def test_siblings_see_what_the_first_has_sealed() -> None:
    """A second request adopts what a first one sealed while it still runs; the first one's end changes nothing (B028)."""
    world = World()
    world.adopt(range(40), "first")
    assert brief(world.seal("first", 18)) == [("sealed", 2, 1, 0, 8), ("sealed", 3, 2, 8, 8), ("kept", 3, 16)]
    for name in ("second", "third"):
        assert brief(world.adopt(range(40), name, session_key=name)) == [("hit", 3, 16, "memory", [])]
    assert world.state.nodes[2].leases == 3
    world.do(cmd.EndRequest(at_us=world.at_us, request="first", outcome="failed"))
    assert brief(world.seal("second", 24)) == [("sealed", 4, 3, 16, 8), ("kept", 4, 24)]
    assert brief(world.seal("third", 24)) == [("kept", 4, 24)]
    assert world.seal("third", 20) == []


@pytest.mark.parametrize(("outcome", "kept"), [("cancelled", 1), ("failed", 0), ("not_stored", 0)])
def test_a_cancelled_prefill_keeps_what_it_sealed(outcome: str, kept: int) -> None:
    """Only a cancelled request leaves its sealed segments as an entry; others leave at most unnamed pieces."""
    world = World()
    world.adopt(range(40), "r")
    world.seal("r", 16)
    world.do(cmd.EndRequest(at_us=world.at_us, request="r", outcome=outcome))
    assert len(world.state.entries) == kept
    assert not world.state.requests


def test_donate_cancelled_off_follows_the_guide() -> None:
    """With donate_cancelled off a cancelled request leaves no entry."""
    world = World(donate_cancelled=False)
    world.adopt(range(40), "r")
    world.seal("r", 16)
    world.do(cmd.EndRequest(at_us=world.at_us, request="r", outcome="cancelled"))
    assert not world.state.entries


def test_a_request_may_read_without_storing_and_store_without_reading() -> None:
    """`store=False` seals nothing; `read=False` adopts nothing and is no lookup."""
    world = World()
    world.store(range(20))
    world.adopt(range(30), "reads", store=False)
    assert world.seal("reads", 28) == []
    asked = world.adopt(range(30), "stores", read=False)
    assert asked == [ev.RequestServedCold("stores", "no_read", 30)]
    assert world.state.counters["lookups"] == 2


def test_without_blocks_only_whole_entries_match() -> None:
    """APC off: an entry is adopted when the prompt begins with all of it, never in part."""
    from mlxcel.core.keys import NamespaceKey

    world = World(key=NamespaceKey("model", block_size=1), apc_enabled=False, block_size=1)
    world.store(range(21))
    assert brief(world.adopt([*range(20), 99, 99])) == [("miss", "no_common_prefix", 20)]
    assert brief(world.adopt(range(23))) == [("hit", 4, 21, "memory", [])]
    assert brief(world.adopt(range(21))) == [("hit", 4, 20, "memory", [])]


def test_what_is_older_than_its_time_is_no_hit_even_before_a_sweep() -> None:
    """Past `ttl` a prefix is not adopted; a request's lease or its own longer time keeps it."""
    world = World(ttl_us=100)
    world.store(range(20))
    world.store(range(100, 120), ttl_us=1000)
    world.at_us += 99
    assert brief(world.adopt(range(30), "r")) == [("miss", "expired", 20)]
    assert brief(world.adopt(range(100, 130)))[0][0] == "hit"


def test_a_requests_own_time_ends_at_the_lookup() -> None:
    """Past its own time an entry is no hit, though no sweep came; what another entry shares with it stays one."""
    world = World(ttl_us=10_000)
    world.store(range(20), session="brief", ttl_us=50)
    world.store([*range(12), 90, 91, 92, 93], session="long")
    world.at_us += 60
    assert brief(world.adopt(range(30), session_key="brief")) == [("hit", 5, 12, "memory", [])]
    assert world.entry(1).last_used_us < world.at_us - 50  # the hit is not credited to what is over
    world.do(cmd.EndRequest(at_us=world.at_us, request=f"r{world.asked}", outcome="not_stored"))
    world.do(cmd.SweepExpired(at_us=world.at_us))
    assert brief(world.adopt(range(30))) == [("hit", 5, 12, "memory", [])]
    assert list(world.state.entries) == [2]


@pytest.mark.parametrize("swept", [False, True])
def test_what_was_captured_on_the_way_ends_with_its_entry(swept: bool) -> None:
    """A boundary snapshot is used no longer than the entry of the request that took it."""
    world = World("snapshot")
    world.adopt(range(20), "a", ttl_us=50)
    world.capture("a", 10)
    world.donate("a", [90], state_nbytes=100)
    assert brief(world.adopt([*range(12), 7, 7]))[0][0] == "hit"
    world.do(cmd.EndRequest(at_us=world.at_us, request="r2", outcome="not_stored"))
    world.at_us += 60
    if swept:
        world.do(cmd.SweepExpired(at_us=world.at_us))
        assert not world.state.lru["memory", True]
    for prompt in ([*range(12), 7, 7], [*range(20), 90, 1]):
        kind, reason, *_ = brief(world.adopt(prompt, session_key="else"))[-1]
        assert (kind, reason) == ("miss", "cold_store" if swept else "expired")


def test_a_hit_refreshes_recency() -> None:
    """Time to live counts from the last use."""
    world = World(ttl_us=100)
    world.store(range(20))
    for _ in range(5):
        world.at_us += 90
        assert brief(world.adopt(range(30)))[0][0] == "hit"
        world.donate(f"r{world.asked}")


def test_prefill_is_chosen_where_reading_would_take_longer() -> None:
    """Restoring 16 tokens of 10 bytes each from disk against computing them, by measured rates."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.write_all()
    world.restart()
    slow = {"prefill_tokens_per_s": 100.0, "restore_bytes_per_s": 999.0}
    fast = {"prefill_tokens_per_s": 100.0, "restore_bytes_per_s": 1001.0}
    assert brief(world.adopt(range(30), **slow)) == [("miss", "prefill_sooner", 20)]
    assert brief(world.adopt(range(30), **fast)) == [("hit", 4, 20, "disk", [1, 2, 3])]


def test_a_disk_hit_counts_when_it_is_in_memory() -> None:
    """A hit from disk is a hit once the restore ended; a failed one makes the request cold."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.write_all()
    world.restart()
    world.adopt(range(30), "r")
    assert "hits" not in world.state.counters
    events = world.do(cmd.RecordRestore(at_us=world.at_us, request="r"))
    assert events == [
        ev.PieceRestored(1, [2]),
        ev.PieceRestored(2, [3]),
        ev.PieceRestored(3, [4]),
        ev.PrefixRestored("r"),
    ]
    assert (world.state.counters["hits"], world.state.counters["disk_hits"]) == (1, 1)
    world.restart()
    world.adopt(range(30), "s")
    events = world.do(cmd.RecordRestore(at_us=world.at_us, request="s", lost=2, error="checksum"))
    assert brief(events) == [
        ("RestoreFailed", "s", 2, "checksum"),
        ("evicted", 4, "disk", "unreachable", 40), ("evicted", 3, "disk", "lost", 80),
    ]  # fmt: skip
    assert world.entry(1).length == 8
    assert world.state.requests["s"].adopted == 0
    assert brief(world.adopt(range(30), "s", again=True))[0][:3] == ("hit", 2, 8)


def test_equal_sequences_of_two_tenants_are_two_entries() -> None:
    """The guide's digest knows no salt: a donation never takes over from an entry of another namespace."""
    from mlxcel.core.keys import NamespaceKey

    world = World()
    first = world.store(range(20))
    world.namespace = world.open(NamespaceKey("model", tenant_salt="other", block_size=4))
    second = world.store(range(20))
    assert list(world.state.entries) == [first, second]
    assert world.entry(first).digest == world.entry(second).digest
