"""Captured states of models that can't be cut by tokens: what is kept with them, and what they make superfluous."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.extend import plan_extension
from mlxcel.core.keys import ANONYMOUS_SESSION, PieceHasher
from mlxcel.core.match import match_prefix
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.state import MEMORY, Namespace, Node, Request, State
from mlxcel.core.tokens import common_tokens, count, cut

HEADER_TOKENS = 16  # what a template may write between the last message and the answer, and not write again later
INTERVALS_A_SESSION = 4  # live snapshots of origin "interval" on one path


def decide_capture(state: State, c: cmd.CaptureSnapshot) -> list[ev.Event]:
    """Keep the whole state at a planned position of the prompt."""
    request = state.requests[c.request]
    if not (state.policy.active and request.store):
        return []
    if c.length < state.policy.min_prefix_tokens:
        return [ev.ReuseRefused(c.request, "donate", RefusalReason.PREFIX_TOO_SHORT, c.length)]
    return keep_snapshot(state, request, request.tokens, c, c.nbytes, c.origin)[1]


def keep_snapshot(
    state: State,
    request: Request,
    tokens: bytes,
    c: cmd.CaptureSnapshot | cmd.DonatePrefix,
    nbytes: int,
    origin: str,
    entry: int | None = None,
) -> tuple[int, list[ev.Event]]:
    """Return (snapshot node, events); node 0 when it is refused. `entry`: see plan_extension.

    The growing layers' rows up to the last whole block are kept as shared segments, the state and the rows after that
    block as one small blob: both or neither. A model without growing layers keeps only the blob, below the root.
    """
    namespace, policy, length = state.namespaces[request.namespace], state.policy, c.length
    if nbytes <= 0:
        return 0, [_refused(request, RefusalReason.EMPTY_SET, length, "a state of 0 bytes")]
    if nbytes > policy.snapshot_capacity_bytes:
        detail = f"snapshot of {nbytes} bytes, capacity {policy.snapshot_capacity_bytes} bytes"
        return 0, [_refused(request, RefusalReason.OVERSIZED, length, detail)]
    aligned = length // namespace.block_size * namespace.block_size if namespace.kv_bytes_per_token else 0
    tail = cut(tokens, aligned, length)
    known = _known_snapshot(state, namespace, tokens, aligned, tail)
    if known and not state.readable(state.nodes[known].blob):  # nothing may lean on bytes that can still fail
        return 0, [_refused(request, RefusalReason.OVERSIZED, length, "the same state waits to be written to disk")]
    plan = EvictionPlan(state, [known])
    older = [] if known else _superseded(state, request, tokens, length, origin, c.awaited)
    rewritten = [] if known or origin != "completion" else _rewritten(state, request, tokens, length, older, c.awaited)
    for old in [*rewritten, *older]:
        plan.supersede(old)
    grown = plan_extension(state, request, tokens, aligned, plan, c.live_bytes, 0 if known else nbytes, entry)
    if grown.length != aligned or not (grown.fits or (known and entry is None)):
        return 0, [_refused(request, RefusalReason.OVERSIZED, length, "no room beside what is leased or pinned")]
    if known:
        return known, [*grown.events, ev.PrefixSealed(request.id, known, length)]
    node = grown.next_node
    key = PieceHasher(namespace.digest, tokens).key(aligned, length, b"state")
    taken = ev.SnapshotTaken(
        request.id, node, grown.node, grown.next_blob, key, length, count(tail), nbytes, origin,
        "" if origin == "system" else request.session_key,
        policy.writes_behind(nbytes), _own_losses(state, request, grown.events),
        max(0, length - count(request.tokens)), c.cuttable,
    )  # fmt: skip
    # What lies above a rewritten one may be evicted in this very decision, so it goes first; this request's own path
    # is leased until the new snapshot takes the lease over.
    sealed = ev.PrefixSealed(request.id, node, length)
    return node, [*_gone(rewritten, node), *grown.events, taken, sealed, *_gone(older, node)]


def _gone(older: list[Node], by: int) -> list[ev.Event]:
    events: list[ev.Event] = []
    for old in older:
        events += [ev.EntryEvicted(anchored, "replaced", "all") for anchored in old.anchored]
        events.append(ev.SnapshotSuperseded(old.id, by, old.blob))
    return events


def _refused(request: Request, reason: RefusalReason, tokens: int, detail: str) -> ev.ReuseRefused:
    return ev.ReuseRefused(request.id, "donate", reason, tokens, 0, detail)


def _own_losses(state: State, request: Request, events: list[ev.Event]) -> int:
    """Return how many snapshots of the request's own session the events push out of memory."""
    evicted = [state.nodes[e.node] for e in events if isinstance(e, ev.PieceEvicted) and e.tier == MEMORY]
    own = (request.namespace, request.session_key)
    return sum(1 for node in evicted if node.snapshot and (node.namespace, node.session_key) == own)


def _known_snapshot(state: State, namespace: Namespace, tokens: bytes, aligned: int, tail: bytes) -> int:
    """Return the node that already holds the state at this very position, or 0."""
    found = match_prefix(state, namespace, tokens, aligned)
    if found.length != aligned or found.partial:
        return 0
    parent = found.path[-1] if found.path else state.nodes[namespace.root]
    return (parent.snapshots or {}).get(tail, 0)


def _superseded(
    state: State, request: Request, tokens: bytes, length: int, origin: str, spared: list[int]
) -> list[Node]:
    """Older snapshots of the same session and origin that lie on this one's path have done their work.

    Not those of origin "system", which belong to no session; of "interval" the deepest few stay, so that a rewritten
    tail finds one. The request's own lease moves to the new snapshot first, so it does not keep the old one.
    """
    if origin == "system":
        return []
    namespace = state.namespaces[request.namespace]
    path = [state.nodes[namespace.root], *match_prefix(state, namespace, tokens).path]
    found: list[Node] = []
    for node in path:
        for tail, snapshot_id in sorted((node.snapshots or {}).items()):
            old = state.nodes[snapshot_id]
            if snapshot_id in spared or not _is_ancestor(old, request, origin, length):
                continue
            if cut(tokens, node.end, old.end) == tail:
                found.append(old)
    if origin == "interval":
        return sorted(found, key=lambda node: node.end)[: 1 - INTERVALS_A_SESSION]
    return found


def _rewritten(
    state: State, request: Request, tokens: bytes, length: int, older: list[Node], spared: list[int]
) -> list[Node]:
    """The session's earlier answers whose prompt this conversation contains, though the answer came back in other
    tokens (trimmed, without its thinking): no later turn will begin with them."""
    if request.session_key == ANONYMOUS_SESSION:
        return []
    known = {node.id for node in older} | set(spared)
    found: list[Node] = []
    for node_id in sorted(state.session_snapshots.get((request.namespace, request.session_key), ())):
        old = state.nodes[node_id]
        if (
            node_id in known
            or old.leases
            or not old.answer_tokens
            or not _is_ancestor(old, request, "completion", length)
        ):
            continue
        prompt = old.end - old.answer_tokens - HEADER_TOKENS
        if common_tokens(state.path_tokens(node_id), tokens) >= max(1, prompt):
            found.append(old)
    return found


def _is_ancestor(old: Node, request: Request, origin: str, length: int) -> bool:
    if old.uses > 1:
        return False  # several requests started from here: a shared prefix, not a link of one chain
    own_lease = 1 if request.node == old.id else 0
    same_chain = old.session_key == request.session_key and old.origin == origin
    return same_chain and old.end < length and old.leases <= own_lease and not old.pinned
