"""Pins: an operator's hold on entries. Counts along the whole path, so that no decision has to look a pin up."""

from mlxcel.core.state import Entry, Pin, State


def pin(state: State, made: Pin) -> None:
    """Hold the entry under the pin's name."""
    entry = state.entries[made.entry]
    state.pins[made.name] = made
    entry.pins += 1
    _count(state, entry.node, 1)


def unpin(state: State, name: str) -> None:
    """Let go of the entry that the name holds."""
    entry = state.entries[state.pins.pop(name).entry]
    entry.pins -= 1
    _count(state, entry.node, -1)


def unpin_entry(state: State, entry: Entry) -> list[Pin]:
    """Let go of an entry that ends, under all its names; returns the pins there were."""
    if not entry.pins:
        return []
    held = [made for made in state.pins.values() if made.entry == entry.id]
    for made in held:
        unpin(state, made.name)
    return held


def _count(state: State, node_id: int, by: int) -> None:
    node = state.nodes[node_id]
    while node.parent:
        node.pinned += by
        node = state.nodes[node.parent]
