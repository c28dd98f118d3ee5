"""Entries and pins as an operator sees them."""

from mlxcel.core import commands as cmd
from mlxcel.core.listing import PinView, entry_view, list_entries, list_pins, memory_order
from tests.core.world import World


def test_entries_are_listed_most_recent_first() -> None:
    """A page of entries, with bytes in both tiers, pins and leases."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.store([*range(12), *range(50, 58)], session="you")
    world.write_all()
    world.do(cmd.PinPrefix(at_us=3, name="sys", entry=1, caller="ops"))
    world.adopt(range(30), "running")
    views = list_entries(world.state)
    assert [view.entry for view in views] == [1, 2]
    first = views[0]
    assert (first.tokens, first.bytes_in_memory, first.bytes_on_disk, first.leases, first.pins) == (
        20,
        200,
        200,
        1,
        ["sys"],
    )
    assert (first.hits, first.session_key, first.resident, first.snapshot) == (2, "me", True, False)
    assert [view.entry for view in list_entries(world.state, limit=1, skip=1)] == [2]
    assert entry_view(world.state, 2) == views[1]
    assert entry_view(world.state, 9) is None
    assert list_pins(world.state) == [PinView("sys", 1, 20, "ops", 3)]


def test_the_order_of_leaving_is_listed() -> None:
    """Least recent first, each node after all nodes below it."""
    world = World()
    world.store(range(20))
    world.store(range(100, 108))
    assert memory_order(world.state, snapshot=False) == [4, 3, 2, 5]
