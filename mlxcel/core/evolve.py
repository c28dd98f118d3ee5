"""How events change the state: one small function an event type. Shared by the server, recovery and replay."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mlxcel.core import events as ev
from mlxcel.core import residency
from mlxcel.core.evolve_tiers import HANDLERS, by_snapshot, count_hit
from mlxcel.core.pins import pin, unpin_entry
from mlxcel.core.recovery import apply_recovered, apply_reset
from mlxcel.core.state import NOT_STORED, QUEUED, Blob, Entry, Namespace, Node, Request, State
from mlxcel.core.tokens import cut


def apply(state: State, at_us: int, events: Iterable[ev.Event]) -> None:
    """Bring the state past one record: its time, then its events in order."""
    state.now_us = at_us
    for event in events:
        evolve(state, event)


def evolve(state: State, event: ev.Event) -> None:
    """Change `state` in place by one event. Raises KeyError for an event that the state can't have produced."""
    _HANDLERS[type(event)](state, event)


def _policy_adopted(state: State, e: ev.PolicyAdopted) -> None:
    state.policy, state.logic_version = e.policy, e.logic_version


def _namespace_opened(state: State, e: ev.NamespaceOpened) -> None:
    digest = e.key.digest()
    state.namespaces[e.namespace] = Namespace(
        e.namespace, e.root, e.key, digest, e.model_id, e.kv_bytes_per_token, e.reuse, e.fingerprint_parts
    )
    state.by_namespace[digest] = e.namespace
    state.related.setdefault(e.key.relatives(e.fingerprint_parts), []).append(e.namespace)
    state.nodes[e.root] = Node(e.root, 0, e.namespace, 0, 0, 0, b"", state.now_us)
    state.next_namespace, state.next_node = e.namespace + 1, e.root + 1


def _namespace_closed(state: State, e: ev.NamespaceClosed) -> None:
    gone = state.namespaces.pop(e.namespace)
    del state.nodes[gone.root], state.by_namespace[gone.digest]
    relatives = gone.key.relatives(gone.fingerprint_parts)
    state.related[relatives].remove(gone.id)
    if not state.related[relatives]:
        del state.related[relatives]


def _request_arrived(state: State, e: ev.RequestArrived) -> None:
    before = state.requests.get(e.request)
    if before is not None:
        residency.release(state, before.node)
    root = state.namespaces[e.namespace].root
    state.requests[e.request] = Request(
        e.request,
        e.namespace,
        e.template_sig,
        e.session_key,
        e.tokens,
        e.store,
        e.ttl_us,
        state.now_us,
        root,
        background=e.background,
    )


def _prefix_adopted(state: State, e: ev.PrefixAdopted) -> None:
    request = state.requests[e.request]
    request.node, request.adopted, request.kept = e.node, e.length, e.length
    request.source, request.restore, request.entry = e.source, list(e.restore), e.entry
    cut = state.nodes[e.node].snapshot and e.length < state.nodes[e.node].end
    state.nodes[e.node].uses += not (request.background or cut)
    residency.lease(state, e.node)
    residency.touch(state, e.node)
    if request.background:
        return
    entry = state.entries.get(e.entry)
    if entry is not None:
        entry.hits += 1
        residency.touch_entry(state, entry)
    state.count("lookups")
    if by_snapshot(state, e.request):
        state.count("snapshot_lookups")
    if not e.restore:
        count_hit(state, request)


def _prefix_missed(state: State, e: ev.PrefixMissed) -> None:
    if state.requests[e.request].background:
        return
    state.count("lookups")
    state.count("misses")
    state.count("miss_" + e.reason)
    if by_snapshot(state, e.request):
        state.count("snapshot_lookups")
        state.count("snapshot_misses")


def _reuse_refused(state: State, e: ev.ReuseRefused) -> None:
    state.reject_reasons[e.reason] = state.reject_reasons.get(e.reason, 0) + 1
    state.last_reject = [e.reason, e.request, e.context_tokens, e.entry_tokens, state.now_us // 1000]
    if e.reason == "oversized" and e.stage == "donate":
        own = "snapshot_" if e.request in state.requests and by_snapshot(state, e.request) else ""
        state.count(own + "rejections_oversized")


def _served_cold(state: State, e: ev.RequestServedCold) -> None:
    state.count("served_cold")


def _tokens_generated(state: State, e: ev.TokensGenerated) -> None:
    state.requests[e.request].tokens += e.tokens


def _piece_split(state: State, e: ev.PieceSplit) -> None:
    residency.split(state, e.node, e.head, e.tokens)
    state.next_node = e.head + 1
    state.count("splits")


def _piece_sealed(state: State, e: ev.PieceSealed) -> None:
    label = cut(state.requests[e.request].tokens, e.start, e.start + e.tokens)
    parent = state.nodes[e.parent]
    node = Node(e.node, e.parent, parent.namespace, e.blob, 0, e.start, label, state.now_us)
    _add(state, node, Blob(e.blob, e.key, e.nbytes, False), e.spill)
    state.count("pieces_sealed")


def _snapshot_taken(state: State, e: ev.SnapshotTaken) -> None:
    label = cut(state.requests[e.request].tokens, e.length - e.tail_tokens, e.length)
    parent = state.nodes[e.parent]
    node = Node(e.node, e.parent, parent.namespace, e.blob, 0, e.length - e.tail_tokens, label, state.now_us, True)
    node.origin, node.session_key, node.answer_tokens = e.origin, e.session_key, e.answer_tokens
    node.template_sig, node.cuttable = state.requests[e.request].template_sig, e.cuttable
    _add(state, node, Blob(e.blob, e.key, e.nbytes, True), e.spill)
    state.count("snapshot_inserts")
    if e.self_evictions:
        state.count("snapshot_self_evictions", e.self_evictions)


def _add(state: State, node: Node, blob: Blob, spill: bool) -> None:
    blob.disk_state = QUEUED if spill else NOT_STORED
    state.blobs[blob.id], state.blob_by_key[blob.key] = blob, blob.id
    state.next_blob = max(state.next_blob, blob.id + 1)
    state.next_node = max(state.next_node, node.id + 1)
    residency.insert(state, node)
    residency.enter_memory(state, node)
    if spill:
        residency.enter_disk(state, node)


def _snapshot_superseded(state: State, e: ev.SnapshotSuperseded) -> None:
    node = state.nodes[e.node]
    residency.leave_memory(state, node)
    residency.leave_disk(state, node)
    residency.remove(state, node)
    state.count("snapshot_supersedes")


def _prefix_sealed(state: State, e: ev.PrefixSealed) -> None:
    request = state.requests[e.request]
    residency.lease(state, e.node)
    residency.release(state, request.node)
    request.node, request.kept = e.node, e.length
    residency.touch(state, e.node)


def _entry_donated(state: State, e: ev.EntryDonated) -> None:
    request = state.requests[e.request]
    held = []
    if e.replaced:
        held = unpin_entry(state, state.entries[e.replaced])
        residency.forget_entry(state, e.replaced)
    entry = Entry(
        e.entry, e.digest, request.namespace, e.node, e.length, request.template_sig, request.session_key,
        e.origin, state.now_us, state.now_us, request.ttl_us,
    )  # fmt: skip
    state.next_entry = e.entry + 1
    residency.remember_entry(state, entry)
    for made in held:
        pin(state, msgspec.structs.replace(made, entry=entry.id))
    residency.touch(state, e.node)
    for node in state.path(e.node):
        node.via = e.entry
        if request.ttl_us > 0:
            node.keep_until_us = max(node.keep_until_us, state.now_us + request.ttl_us)
    state.count("inserts")


def _request_ended(state: State, e: ev.RequestEnded) -> None:
    request = state.requests.pop(e.request)
    residency.release(state, request.node)
    state.count("ended_" + e.outcome)


_HANDLERS: dict[type, Callable[[State, Any], None]] = {
    ev.PolicyAdopted: _policy_adopted,
    ev.NamespaceOpened: _namespace_opened,
    ev.NamespaceClosed: _namespace_closed,
    ev.RequestArrived: _request_arrived,
    ev.PrefixAdopted: _prefix_adopted,
    ev.PrefixMissed: _prefix_missed,
    ev.ReuseRefused: _reuse_refused,
    ev.RequestServedCold: _served_cold,
    ev.TokensGenerated: _tokens_generated,
    ev.PieceSplit: _piece_split,
    ev.PieceSealed: _piece_sealed,
    ev.SnapshotTaken: _snapshot_taken,
    ev.SnapshotSuperseded: _snapshot_superseded,
    ev.PrefixSealed: _prefix_sealed,
    ev.EntryDonated: _entry_donated,
    ev.RequestEnded: _request_ended,
    ev.CacheReset: apply_reset,
    ev.Recovered: apply_recovered,
    **HANDLERS,
}
