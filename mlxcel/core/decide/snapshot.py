"""Captured states of models that can't be cut by tokens: what is kept with them, and what they make superfluous."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.extend import plan_extension
from mlxcel.core.keys import PieceHasher
from mlxcel.core.match import match_prefix
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.state import Namespace, Node, Request, State
from mlxcel.core.tokens import count, cut


def decide_capture(state: State, c: cmd.CaptureSnapshot) -> list[ev.Event]:
    """Keep the whole state at a planned position of the prompt."""
    request = state.requests[c.request]
    if not (state.policy.active and request.store):
        return []
    if c.length < state.policy.min_prefix_tokens:
        return [ev.ReuseRefused(c.request, "donate", RefusalReason.PREFIX_TOO_SHORT, c.length)]
    return keep_snapshot(state, request, request.tokens, c.length, c.nbytes, c.origin, c.awaited)[1]


def keep_snapshot(
    state: State, request: Request, tokens: bytes, length: int, nbytes: int, origin: str, awaited: list[int]
) -> tuple[int, list[ev.Event]]:
    """Return (snapshot node, events); node 0 when it is refused.

    The growing layers' rows up to the last whole block are kept as shared segments, the state and the rows after that
    block as one small blob: both or neither. A model without growing layers keeps only the blob, below the root.
    """
    namespace, policy = state.namespaces[request.namespace], state.policy
    if nbytes > policy.snapshot_capacity_bytes:
        detail = f"snapshot of {nbytes} bytes, capacity {policy.snapshot_capacity_bytes} bytes"
        return 0, [ev.ReuseRefused(request.id, "donate", RefusalReason.OVERSIZED, length, 0, detail)]
    aligned = length // namespace.block_size * namespace.block_size if namespace.kv_bytes_per_token else 0
    tail = cut(tokens, aligned, length)
    known = _known_snapshot(state, namespace, tokens, aligned, tail)
    grown = plan_extension(state, request, tokens, aligned, 0 if known else nbytes, {known} if known else set())
    if grown.length != aligned:
        detail = "no room for the attention layers"
        return 0, [ev.ReuseRefused(request.id, "donate", RefusalReason.OVERSIZED, length, 0, detail)]
    if known:
        return known, [*grown.events, ev.PrefixSealed(request.id, known, length)]
    evicted = {e.node for e in grown.events if isinstance(e, ev.PieceEvicted)}
    node = grown.next_node
    key = PieceHasher(namespace.digest, tokens).key(aligned, length, b"state")
    taken = ev.SnapshotTaken(
        request.id, node, grown.node, grown.next_blob, key, length, count(tail), nbytes, origin, request.session_key,
        policy.write_policy == "behind",
    )  # fmt: skip
    sealed = ev.PrefixSealed(request.id, node, length)
    gone = _superseded(state, request, tokens, length, node, origin, evicted | set(awaited))
    return node, [*grown.events, taken, sealed, *gone]


def _known_snapshot(state: State, namespace: Namespace, tokens: bytes, aligned: int, tail: bytes) -> int:
    """Return the node that already holds the state at this very position, or 0."""
    found = match_prefix(state, namespace, tokens, aligned)
    if found.length != aligned or found.partial:
        return 0
    parent = found.path[-1] if found.path else state.nodes[namespace.root]
    return (parent.snapshots or {}).get(tail, 0)


def _superseded(
    state: State, request: Request, tokens: bytes, length: int, by: int, origin: str, spared: set[int]
) -> list[ev.Event]:
    """An older snapshot of the same session and origin that lies on this one's path has done its work.

    The request's own lease moves to the new snapshot first, so it does not keep the old one.
    """
    namespace = state.namespaces[request.namespace]
    path = [state.nodes[namespace.root], *match_prefix(state, namespace, tokens).path]
    found: list[ev.Event] = []
    for node in path:
        for tail, snapshot_id in sorted((node.snapshots or {}).items()):
            old = state.nodes[snapshot_id]
            if snapshot_id in spared or not _is_ancestor(old, request, origin, length):
                continue
            if cut(tokens, node.end, old.end) == tail:
                found += [ev.EntryEvicted(entry, "replaced", "all") for entry in old.anchored]
                found.append(ev.SnapshotSuperseded(snapshot_id, by, old.blob))
    return found


def _is_ancestor(old: Node, request: Request, origin: str, length: int) -> bool:
    if old.uses > 1:
        return False  # several requests started from here: a shared prefix, not a link of one chain
    own_lease = 1 if request.node == old.id else 0
    same_chain = old.session_key == request.session_key and old.origin == origin
    return same_chain and old.end < length and old.leases <= own_lease and not old.pinned
