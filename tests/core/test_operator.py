"""Pin, unpin, delete, promote, demote, reset."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.state import Pin
from mlxcel.core.stats import cache_stats
from tests.core.world import World, brief


def pinned_world() -> World:
    """Return a world with a pinned entry 1 and an entry 2 that shares its first 12 tokens; all written to disk."""
    world = World(write_policy="behind", ttl_us=100, disk_ttl_us=100)
    world.store(range(20))
    world.store([*range(12), *range(50, 58)])
    assert world.do(cmd.PinPrefix(at_us=5, name="sys", entry=1, caller="ops")) == [ev.PrefixPinned("sys", 1, "ops", 0)]
    world.write_all()
    return world


def test_a_pin_outlives_age_and_restart() -> None:
    """Neither time to live in either tier nor a restart ends what is pinned; all else goes."""
    world = pinned_world()
    world.at_us += 1000
    assert brief(world.do(cmd.SweepExpired(at_us=world.at_us)))[:2] == [
        ("entry gone", 2, "ttl", "memory"), ("evicted", 6, "memory", "ttl", 80),
    ]  # fmt: skip
    world.restart()
    world.reload()
    assert world.state.pins == {"sys": Pin("sys", 1, "ops", 5)}
    assert brief(world.adopt(range(30))) == [("hit", 4, 20, "disk", [1, 2, 3])]


def test_a_pin_outlives_pressure_and_limits() -> None:
    """No shortage of bytes or entries takes what is pinned; what can't fit beside it is refused."""
    world = World(capacity_bytes=400, max_entries=1)
    world.store(range(40))
    world.do(cmd.PinPrefix(at_us=5, name="sys", entry=1))
    world.adopt(range(100, 120), "r")
    assert brief(world.donate("r")) == [("refused", "donate", "oversized", 20, 0)]
    assert brief(world.do(cmd.ShrinkMemory(at_us=9, target_bytes=0))) == [("MemoryShrunk", 0, 0, 400, False)]


def test_reset_spares_pins_unless_asked() -> None:
    """A reset names who asked, keeps pins and leases, and takes pins only when told to."""
    world = pinned_world()
    assert world.do(cmd.ResetCache(at_us=9, caller="ops")) == [ev.CacheReset("ops", 1, 80)]
    assert list(world.state.entries) == [1]
    assert world.do(cmd.ResetCache(at_us=9, caller="ops", include_pins=True)) == [ev.CacheReset("ops", 1, 200, True)]
    assert not world.state.entries
    assert not world.state.pins


def test_reset_spares_what_runs() -> None:
    """What a running request leases stays until it ends."""
    world = World()
    world.store(range(20))
    world.store(range(100, 120))
    world.adopt(range(30), "running")
    assert world.do(cmd.ResetCache(at_us=9)) == [ev.CacheReset("", 1, 200)]
    assert list(world.state.entries) == [1]


def test_pinning_writes_what_only_memory_has() -> None:
    """Under on-evict a pinned entry would never leave memory, so it is written when it is pinned."""
    world = World(write_policy="on-evict")
    world.store(range(20))
    assert brief(world.do(cmd.PinPrefix(at_us=5, name="sys", entry=1)))[1:] == [
        ("SpillQueued", 1), ("SpillQueued", 2), ("SpillQueued", 3),
    ]  # fmt: skip
    world.write_all()
    world.restart()
    assert brief(world.adopt(range(30)))[0][:3] == ("hit", 4, 20)


def test_a_name_moves_and_an_equal_entry_takes_the_pin_over() -> None:
    """Pinning another entry under a name lets the first go; a donation of equal digest keeps the pin."""
    world = World()
    world.store(range(20))
    world.store(range(100, 120))
    world.do(cmd.PinPrefix(at_us=5, name="sys", entry=1))
    assert world.do(cmd.PinPrefix(at_us=6, name="sys", entry=2)) == [ev.PrefixPinned("sys", 2, "", 1)]
    assert world.do(cmd.PinPrefix(at_us=6, name="sys", entry=2)) == []
    assert world.entry(1).pins == 0
    assert world.store(range(100, 120)) == 3
    assert world.state.pins["sys"].entry == 3


def test_figures_of_pins() -> None:
    """Pinned entries and bytes count each once, whatever the number of names."""
    world = pinned_world()
    world.do(cmd.PinPrefix(at_us=6, name="again", entry=1))
    stats = cache_stats(world.state)
    assert (stats["pinned_entries"], stats["pinned_bytes"]) == (1, 200)


def test_unknown_names_and_entries_are_refused() -> None:
    """An operator's mistake is an event that says what was wrong and who asked."""
    world = pinned_world()
    assert brief(world.do(cmd.DeleteEntries(at_us=9, entries=[1, 7], caller="ops"))) == [
        ("OperationRefused", "delete", "pinned", "1", "ops"),
        ("OperationRefused", "delete", "unknown_entry", "7", "ops"),
    ]  # fmt: skip
    assert brief(world.do(cmd.PinPrefix(at_us=9, name="x", entry=7))) == [
        ("OperationRefused", "pin", "unknown_entry", "7", "")
    ]
    assert brief(world.do(cmd.UnpinPrefix(at_us=9, name="x"))) == [
        ("OperationRefused", "unpin", "unknown_pin", "x", "")
    ]
    assert world.do(cmd.UnpinPrefix(at_us=9, name="sys", caller="ops")) == [ev.PrefixUnpinned("sys", 1, "ops")]
    assert all(node.pinned == 0 for node in world.state.nodes.values())


def test_deleting_takes_only_the_entrys_own() -> None:
    """Shared pieces stay; the entry's own leave both tiers."""
    world = World()
    world.store(range(20))
    world.store([*range(12), *range(50, 58)])
    assert brief(world.do(cmd.DeleteEntries(at_us=5, entries=[2], caller="ops"))) == [
        ("entry gone", 2, "deleted", "all"), ("evicted", 6, "memory", "deleted", 80), ("EntriesDeleted", "ops", [2], 80),
    ]  # fmt: skip
    assert "evictions_lru" not in world.state.counters


def test_demoting_waits_for_disk_and_promoting_reads_back() -> None:
    """An entry leaves memory only as far as disk holds it; promotion names what to read and ends with the restore."""
    world = World(write_policy="behind")
    world.store(range(20))
    assert brief(world.do(cmd.DemoteEntry(at_us=5, entry=1, caller="ops"))) == [("EntryDemoted", 1, "ops", 3, 0)]
    world.write_all()
    assert brief(world.do(cmd.DemoteEntry(at_us=5, entry=1, caller="ops"))) == [
        ("entry gone", 1, "demoted", "memory"), ("evicted", 4, "memory", "demoted", 40),
        ("evicted", 3, "memory", "demoted", 80), ("evicted", 2, "memory", "demoted", 80),
        ("EntryDemoted", 1, "ops", 0, 200),
    ]  # fmt: skip
    promote = cmd.PromoteEntry(at_us=5, request="p", entry=1, caller="ops")
    assert world.do(promote) == [ev.PromotionStarted("p", 1, 4, [1, 2, 3], "ops")]
    assert brief(world.do(cmd.RecordRestore(at_us=5, request="p"))) == [
        ("PieceRestored", 1, [2]), ("PieceRestored", 2, [3]), ("PieceRestored", 3, [4]),
        ("RequestEnded", "p", "promoted", ""),
    ]  # fmt: skip
    assert brief(world.do(promote)) == [("OperationRefused", "promote", "in_memory", "1", "ops")]
    assert "hits" not in world.state.counters
    assert world.entry(1).resident


def test_a_failed_promotion_leaves_no_errand() -> None:
    """When the disk tier can't give a piece back the errand ends and the lost piece leaves the tree."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.write_all()
    world.restart()
    world.do(cmd.PromoteEntry(at_us=5, request="p", entry=1))
    events = world.do(cmd.RecordRestore(at_us=5, request="p", lost=3, error="checksum"))
    assert brief(events)[-1] == ("RequestEnded", "p", "promotion_failed", "checksum")
    assert not world.state.requests
    assert world.entry(1).length == 16
