"""When an entry's own time to live is over: from that moment on it is used no more, whenever the next sweep comes."""

from collections.abc import Iterator
from itertools import chain

from mlxcel.core.state import Entry, Node, State


def overdue(entry: Entry, at_us: int) -> bool:
    """True when a time to live that the request itself asked for has passed since the last use. A pin stops it."""
    return entry.ttl_us > 0 and not entry.pins and entry.last_used_us + entry.ttl_us <= at_us


def ended(state: State, node: Node, at_us: int, apart_from: int = 0) -> bool:
    """True when nothing but overdue entries use the node: a sweep would take it out.

    What no entry names (pieces of a request that failed) has no time of its own, but for what `capture_owner` knows.
    `apart_from`: a node right below that is known to have ended. Cost: as far as the first node below that lives on.
    """
    if not state.short_lived:
        return False
    left: list[Iterator[int]] = [iter((node.id,))]
    while left:
        node_id = next(left[-1], 0)
        if not node_id:
            left.pop()
        elif node_id != apart_from:
            at = state.nodes[node_id]
            if (
                at.leases
                or at.pinned
                or not (at.anchored or at.children or at.snapshots or _captured(state, at, at_us))
            ):
                return False
            if not all(overdue(state.entries[entry_id], at_us) for entry_id in at.anchored):
                return False
            left.append(_newest_first(at))
    return True


def capture_owner(state: State, node: Node) -> Entry | None:
    """Return whose a snapshot is that no entry ends at: its session's latest entry, if both are of one conversation.

    It was taken on the way to where the entry ends, or in the background beyond that. What sessions have in common (the end
    of a system prompt, or a place that several requests started from) is nobody's.
    """
    latest = state.latest_in_session.get((node.namespace, node.session_key), 0) if node.snapshot else 0
    if not latest or node.anchored or node.uses > 1:
        return None
    entry = state.entries[latest]
    end = state.nodes[entry.node]
    base = end.parent if end.snapshot else end.id
    one_way = _runs_through(state, base, node.parent) or _runs_through(state, node.parent, base)
    return entry if one_way else None


def _runs_through(state: State, at: int, wanted: int) -> bool:
    while at and at != wanted:
        at = state.nodes[at].parent
    return at == wanted


def _captured(state: State, node: Node, at_us: int) -> bool:
    owner = capture_owner(state, node)
    return owner is not None and overdue(owner, at_us)


def _newest_first(node: Node) -> Iterator[int]:
    """Go over the nodes right below; the newest are the likeliest to live, and one that lives ends the search."""
    return chain(reversed((node.snapshots or {}).values()), reversed((node.children or {}).values()))


def drop_ended(state: State, nodes: list[Node], at_us: int) -> bool:
    """Take from the end of a path what has ended; True when anything was."""
    last = 0
    while nodes and ended(state, nodes[-1], at_us, last):
        last = nodes.pop().id
    return last > 0
