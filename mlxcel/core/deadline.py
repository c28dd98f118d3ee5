"""When an entry's own time to live is over: from that moment on it is used no more, whenever the next sweep comes."""

from mlxcel.core.state import Entry, Node, State


def overdue(entry: Entry, at_us: int) -> bool:
    """True when a time to live that the request itself asked for has passed since the last use. A pin stops it."""
    return entry.ttl_us > 0 and not entry.pins and entry.last_used_us + entry.ttl_us <= at_us


def ended(state: State, node: Node, at_us: int, apart_from: int = 0) -> bool:
    """True when nothing but overdue entries use the node: a sweep would take it out.

    What no entry names (pieces of a request that failed) has no time of its own. `apart_from`: a node right below that is
    known to have ended. Cost: as far as the first node below that lives on.
    """
    if not state.short_lived:
        return False
    left = [node]
    while left:
        at = left.pop()
        below = [*(at.children or {}).values(), *(at.snapshots or {}).values()]
        if at.leases or at.pinned or not (at.anchored or below):
            return False
        if not all(overdue(state.entries[entry_id], at_us) for entry_id in at.anchored):
            return False
        left.extend(state.nodes[node_id] for node_id in below if node_id != apart_from)
    return True


def drop_ended(state: State, nodes: list[Node], at_us: int) -> bool:
    """Take from the end of a path what has ended; True when anything was."""
    last = 0
    while nodes and ended(state, nodes[-1], at_us, last):
        last = nodes.pop().id
    return last > 0
