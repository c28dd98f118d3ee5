"""What a restart and a reset do to the state: memory emptied, or everything dropped that nobody holds."""

from mlxcel.core import events as ev
from mlxcel.core import residency
from mlxcel.core.pins import unpin
from mlxcel.core.state import MEMORY, NOT_STORED, QUEUED, Node, State


def apply_recovered(state: State, e: ev.Recovered) -> None:
    """Release all leases, forget running requests, empty memory, drop what was never written, start counters at 0."""
    for request in state.requests.values():
        residency.release(state, request.node)
    state.requests.clear()
    for snapshot in (False, True):
        for node_id in list(state.lru[MEMORY, snapshot]):
            residency.leave_memory(state, state.nodes[node_id])
    state.resident.clear()
    for entry in state.entries.values():
        entry.resident = False
    for blob in list(state.blobs.values()):
        if blob.disk_state == QUEUED:
            for node_id in blob.nodes:
                residency.leave_disk(state, state.nodes[node_id])
            blob.disk_state = NOT_STORED
    prune(state)
    state.counters, state.reject_reasons, state.last_reject = {}, {}, []


def apply_reset(state: State, e: ev.CacheReset) -> None:
    """Forget all nodes that no request leases and no pin holds, with their entries."""
    if e.include_pins:
        for name in list(state.pins):
            unpin(state, name)
    kept = held_nodes(state)
    for entry_id in [k for k, entry in state.entries.items() if entry.node not in kept]:
        residency.forget_entry(state, entry_id)
    for node in bottom_up(state):
        if node.id not in kept:
            residency.leave_memory(state, node)
            residency.leave_disk(state, node)
            residency.remove(state, node)
    state.count("resets")


def held_nodes(state: State, pins_too: bool = True) -> set[int]:
    """Return the roots and all nodes that a lease or a pin holds (both count along whole paths)."""
    return {n.id for n in state.nodes.values() if n.leases or (n.pinned and pins_too) or not n.parent}


def bottom_up(state: State) -> list[Node]:
    """Return all nodes but the roots, deepest first (a child starts no earlier than its parent; depth breaks ties)."""
    depth: dict[int, int] = {}
    for node in state.nodes.values():
        chain, at = [], node
        while at.parent and at.id not in depth:
            chain.append(at)
            at = state.nodes[at.parent]
        base = depth.get(at.id, 0)
        for n, link in enumerate(reversed(chain), start=1):
            depth[link.id] = base + n
    nodes = [node for node in state.nodes.values() if node.parent]
    return sorted(nodes, key=lambda node: (-depth[node.id], node.id))


def prune(state: State) -> None:
    """Remove every node whose bytes no tier holds, and all below it; entries shrink to what is left of their path."""
    gone: set[int] = set()
    for node in reversed(bottom_up(state)):
        if node.parent in gone or not (node.memory or node.disk):
            gone.add(node.id)
    for node in bottom_up(state):
        if node.id in gone:
            for entry_id in list(node.anchored):
                parent = state.nodes[node.parent]
                if not parent.parent or parent.anchored or len(parent.children or ()) > 1:
                    residency.forget_entry(state, entry_id)
            residency.leave_memory(state, node)
            residency.leave_disk(state, node)
            residency.remove(state, node)
