"""Who leaves first: eviction orders as exact lists."""

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import NamespaceKey
from tests.core.world import World, brief


def crowded(**policy: object) -> World:
    """Return a world of 400 bytes: entry 1 (20 tokens), entry 2 (16), entry 3 (19 of the first 20, most recent)."""
    world = World(capacity_bytes=400, **policy)
    world.store(range(20))
    world.store(range(100, 116))
    world.adopt(range(19))
    world.donate("r3")
    world.adopt(range(200, 216), "new")
    return world


def test_leaf_order_takes_tails_first() -> None:
    """The least recent leaf goes, piece by piece: the old tail of entry 1, then the end of entry 2; insides stay."""
    world = crowded()
    assert brief(world.donate("new"))[:3] == [
        ("entry gone", 1, "lru", "all"), ("evicted", 4, "memory", "lru", 40), ("evicted", 6, "memory", "lru", 80),
    ]  # fmt: skip
    assert list(world.state.resident) == [2, 3, 4]
    assert world.entry(2).length == 8


def test_entry_order_takes_whole_entries() -> None:
    """The guide's order: entry 2 was used least recently (the hit refreshed entry 1), so it goes with all its pieces."""
    world = crowded(ranking="entry-lru")
    assert brief(world.donate("new"))[:3] == [
        ("entry gone", 2, "lru", "all"), ("evicted", 6, "memory", "lru", 80), ("evicted", 5, "memory", "lru", 80),
    ]  # fmt: skip
    assert list(world.state.resident) == [1, 3, 4]


@pytest.mark.parametrize("ranking", ["leaf-lru", "entry-lru"])
def test_number_of_entries_is_limited(ranking: str) -> None:
    """The third of two entries pushes out the least recent one, whole; a hit counts as use."""
    world = World(max_entries=2, ranking=ranking)
    world.store(range(20))
    world.store(range(100, 116))
    world.adopt(range(200, 216))
    assert brief(world.donate("r3"))[:4] == [
        ("entry gone", 1, "lru", "all"),
        ("evicted", 4, "memory", "lru", 40), ("evicted", 3, "memory", "lru", 80), ("evicted", 2, "memory", "lru", 80),
    ]  # fmt: skip
    world.adopt([*range(100, 116), 1, 1, 1, 1, 1])
    assert brief(world.donate("r4"))[:3] == [
        ("entry gone", 3, "lru", "all"), ("evicted", 8, "memory", "lru", 80), ("evicted", 7, "memory", "lru", 80),
    ]  # fmt: skip
    assert world.state.counters["evictions_lru"] == 2


def test_a_shared_prefix_outlives_the_entry_that_made_it() -> None:
    """Dropping an entry takes only pieces that no other entry uses."""
    world = World(max_entries=1)
    world.store(range(20))
    world.adopt([*range(16), 90, 91, 92, 93])
    assert brief(world.donate("r2"))[:2] == [("entry gone", 1, "lru", "all"), ("evicted", 4, "memory", "lru", 40)]


def test_leases_keep_what_runs() -> None:
    """Where everything is leased nothing is evicted, and what doesn't fit is refused rather than stored."""
    world = World(capacity_bytes=400)
    world.store(range(40))
    world.adopt(range(41), "running")
    world.adopt(range(100, 140), "late")
    assert brief(world.donate("late")) == [("refused", "donate", "oversized", 40, 0)]
    world.do(cmd.EndRequest(at_us=world.at_us, request="running", outcome="failed"))
    assert world.store(range(100, 140)) == 2


def test_what_half_fits_is_kept_by_half() -> None:
    """Room for 24 of 40 tokens keeps 24."""
    world = World(capacity_bytes=400)
    world.store(range(16))
    world.adopt(range(17), "running")
    world.adopt(range(100, 140), "late")
    assert brief(world.donate("late"))[-2:] == [("kept", 6, 24), ("donated", 2, 6, 24, 0)]


def test_on_evict_writes_as_it_leaves() -> None:
    """Write policy on-evict: each piece is queued as it leaves memory, is no hit until written, then a hit from disk."""
    world = World(capacity_bytes=200, write_policy="on-evict")
    world.store(range(20))
    world.adopt(range(100, 120))
    assert brief(world.donate("r2"))[:7] == [
        ("SpillQueued", 3), ("entry gone", 1, "lru", "memory"), ("evicted", 4, "memory", "lru", 40),
        ("SpillQueued", 2), ("evicted", 3, "memory", "lru", 80), ("SpillQueued", 1), ("evicted", 2, "memory", "lru", 80),
    ]  # fmt: skip
    assert brief(world.adopt(range(30))) == [("miss", "spill_pending", 20)]
    world.write_all()
    assert brief(world.adopt(range(30))) == [("hit", 4, 20, "disk", [1, 2, 3])]


def test_evicting_what_disk_holds_keeps_the_entry() -> None:
    """Write-behind: an entry that leaves memory lives on on disk and counts there."""
    world = World(capacity_bytes=200, write_policy="behind")
    world.store(range(20))
    world.write_all()
    world.store(range(100, 120))
    assert brief(world.adopt(range(30))) == [("hit", 4, 20, "disk", [1, 2, 3])]
    assert not world.entry(1).resident


def test_disk_is_kept_within_its_capacity() -> None:
    """What was written last pushes out the least recent leaves on disk, never itself."""
    world = World(write_policy="behind", disk_capacity_bytes=250)
    world.store(range(20))
    world.write_all()
    world.store(range(100, 120))
    assert brief(world.write_all()) == [
        ("PieceSpilled", 4, 80), ("PieceSpilled", 5, 80), ("PieceSpilled", 6, 40),
        ("evicted", 4, "disk", "lru", 40), ("evicted", 3, "disk", "lru", 80), ("evicted", 2, "disk", "lru", 80),
    ]  # fmt: skip
    assert world.state.disk_bytes == 200


def test_what_a_changed_model_left_on_disk_goes_first() -> None:
    """Pieces of another fingerprint under the served model's name leave before older pieces that still are of use."""
    world = World(
        write_policy="behind", disk_capacity_bytes=250, serves_model="model", serves_fingerprint="model",
        key=NamespaceKey("model", block_size=4),
    )  # fmt: skip
    world.store(range(20))
    world.write_all()
    useless = world.open(NamespaceKey("model before", block_size=4))
    world.store(range(100, 104), namespace=useless)
    world.write_all()
    world.store(range(200, 204))
    assert brief(world.write_all())[-1] == ("evicted", 6, "disk", "lru", 40)


def test_nothing_is_written_that_could_not_stay() -> None:
    """A piece larger than the disk tier's capacity is not sent there."""
    world = World(write_policy="behind", disk_capacity_bytes=50)
    world.adopt(range(20))
    sealed = [e for e in world.donate("r1") if isinstance(e, ev.PieceSealed)]
    assert [(piece.nbytes, piece.spill) for piece in sealed] == [(80, False), (80, False), (40, True)]


def test_time_to_live_ends_memory_then_disk() -> None:
    """`ttl` ends residency in memory, `disk_ttl` the entry; a sweep takes no more victims than it may."""
    world = World(ttl_us=100, write_policy="behind", disk_ttl_us=1000)
    world.store(range(20))
    world.write_all()

    def sweep(after_us: int, limit: int = 64) -> list[tuple[object, ...]]:
        world.at_us += after_us
        return brief(world.do(cmd.SweepExpired(at_us=world.at_us, limit=limit)))

    assert sweep(99) == []
    assert sweep(1) == [
        ("entry gone", 1, "ttl", "memory"), ("evicted", 4, "memory", "ttl", 40), ("evicted", 3, "memory", "ttl", 80),
        ("evicted", 2, "memory", "ttl", 80), ("SweepDone", 3, False),
    ]  # fmt: skip
    assert sweep(900, 2) == [
        ("evicted", 4, "disk", "ttl", 40),
        ("evicted", 3, "disk", "ttl", 80),
        ("SweepDone", 2, True),
    ]
    assert sweep(0) == [("entry gone", 1, "ttl", "disk"), ("evicted", 2, "disk", "ttl", 80), ("SweepDone", 1, False)]
    assert (world.state.counters["evictions_ttl"], world.state.counters["disk_evictions_ttl"]) == (1, 1)
    assert not world.state.blobs


def test_an_entry_may_have_a_time_of_its_own() -> None:
    """A request's own time to live ends its entry in both tiers, with the pieces that only it uses."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.store([*range(16), 90, 91, 92, 93], ttl_us=50)
    world.write_all()
    world.at_us += 50
    assert brief(world.do(cmd.SweepExpired(at_us=world.at_us))) == [
        ("entry gone", 2, "ttl", "all"), ("evicted", 5, "disk", "ttl", 40), ("evicted", 5, "memory", "ttl", 40),
        ("SweepDone", 3, False),
    ]  # fmt: skip


def test_entry_order_counts_time_per_entry() -> None:
    """By the guide each entry ages alone, even where a younger one shares all its tokens."""
    old = {"ranking": "entry-lru", "ttl_us": 100}
    world = World(**old)
    world.store(range(12))
    world.at_us += 90
    world.store([*range(8), *range(50, 62)], session="you")
    world.at_us += 10
    assert brief(world.do(cmd.SweepExpired(at_us=world.at_us)))[:2] == [
        ("entry gone", 1, "ttl", "all"), ("evicted", 3, "memory", "ttl", 40),
    ]  # fmt: skip


def test_a_full_budget_is_drained_to_its_low_water_mark() -> None:
    """With a mark of 50 % the donation that finds 400 bytes full leaves 200, its own included; a next one evicts nothing."""
    world = World(capacity_bytes=400, low_water_percent=50)
    for at in range(5):
        world.store(range(100 * at, 100 * at + 8))
    assert "memory_pieces_evicted_lru" not in world.state.counters
    world.store(range(900, 908))
    assert world.state.memory_bytes[False] == 160
    assert world.state.counters["memory_pieces_evicted_lru"] == 4
    world.store(range(800, 808))
    assert world.state.counters["memory_pieces_evicted_lru"] == 4


def test_cap_counts_live_kv() -> None:
    """Entries give way for live KV when a request arrives, and what doesn't fit beside it is not stored."""
    world = World(memory_cap_bytes=600)
    world.store(range(20))
    world.store(range(100, 120))
    assert brief(world.adopt(range(200, 240), "r", live_bytes=300)) == [
        ("evicted", 4, "memory", "lru", 40), ("evicted", 3, "memory", "lru", 80), ("miss", "no_common_prefix", 0),
    ]  # fmt: skip
    donated = brief(world.donate("r", live_bytes=400))
    assert donated[-1] == ("donated", 3, 10, 20, 0)
    assert sum(world.state.memory_bytes.values()) == 200


def test_cap_refuses_reads_that_do_not_fit() -> None:
    """What would have to be read from disk beyond the cap is computed instead."""
    world = World(memory_cap_bytes=600, write_policy="behind")
    world.store(range(20))
    world.write_all()
    world.restart()
    assert brief(world.adopt(range(30), live_bytes=500)) == [("miss", "no_room", 20)]
    assert brief(world.adopt(range(30), live_bytes=400))[0][0] == "hit"


def test_pressure_shrinks_memory_in_bounded_steps() -> None:
    """Under memory pressure the least recent leaves go until the target is reached, or so many victims were taken."""
    world = World()
    world.store(range(20))
    world.store(range(100, 120))
    assert brief(world.do(cmd.ShrinkMemory(at_us=9, target_bytes=250))) == [
        ("evicted", 4, "memory", "pressure", 40), ("evicted", 3, "memory", "pressure", 80),
        ("entry gone", 1, "pressure", "all"), ("evicted", 2, "memory", "pressure", 80),
        ("MemoryShrunk", 250, 200, 200, False),
    ]  # fmt: skip
    assert brief(world.do(cmd.ShrinkMemory(at_us=9, target_bytes=0, limit=1))) == [
        ("evicted", 7, "memory", "pressure", 40), ("MemoryShrunk", 0, 40, 160, True),
    ]  # fmt: skip
    assert world.do(cmd.ShrinkMemory(at_us=9, target_bytes=160)) == []
