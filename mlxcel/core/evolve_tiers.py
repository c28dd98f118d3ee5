"""How events about tiers, pins and errands change the state. Part of `evolve`, which see."""

from collections.abc import Callable
from typing import Any

from mlxcel.core import events as ev
from mlxcel.core import residency
from mlxcel.core.pins import pin, unpin
from mlxcel.core.state import NOT_STORED, PROMOTION, QUEUED, STORED, Pin, Request, State

# Endings of an entry that are nobody's lack of room or patience.
_NO_EVICTIONS = ("replaced", "deleted", "demoted")


def count_hit(state: State, request: Request) -> None:
    """Count a request whose adopted prefix is in memory now."""
    if request.background:
        return
    state.count("hits")
    state.count("prefix_tokens_reused", request.adopted)
    if request.restore:
        state.count("disk_hits")
    if by_snapshot(state, request.id):
        state.count("snapshot_hits")
        state.count("snapshot_tokens_reused", request.adopted)


def by_snapshot(state: State, request: str) -> bool:
    """True when a running request's model reuses captured states only."""
    return state.namespaces[state.requests[request].namespace].reuse == "snapshot"


def _piece_evicted(state: State, e: ev.PieceEvicted) -> None:
    node = state.nodes[e.node]
    if e.tier == "memory":
        residency.leave_memory(state, node)
    else:
        residency.leave_disk(state, node)
    state.count(f"{e.tier}_pieces_evicted_{e.reason}")
    if node.snapshot and e.tier == "memory":
        state.count("snapshot_evictions_ttl" if e.reason == "ttl" else "snapshot_evictions_lru")
    if not node.memory and not node.disk:
        residency.remove(state, node)


def _entry_evicted(state: State, e: ev.EntryEvicted) -> None:
    entry = state.entries[e.entry]
    if entry.resident and e.reason not in _NO_EVICTIONS:
        state.count("evictions_ttl" if e.reason == "ttl" else "evictions_lru")
    if e.tier == "memory":
        entry.resident = False
        state.resident.pop(e.entry, None)
        return
    if e.tier == "disk":
        state.count("disk_evictions_" + ("ttl" if e.reason == "ttl" else "lru"))
    residency.forget_entry(state, e.entry)


def _spill_queued(state: State, e: ev.SpillQueued) -> None:
    blob = state.blobs[e.blob]
    blob.disk_state = QUEUED
    for node_id in blob.nodes:
        residency.enter_disk(state, state.nodes[node_id])
        residency.raise_ancestors(state, node_id)


def _piece_spilled(state: State, e: ev.PieceSpilled) -> None:
    blob = state.blobs[e.blob]
    state.disk_bytes += e.stored_bytes - blob.stored_bytes
    blob.disk_state, blob.stored_bytes = STORED, e.stored_bytes
    state.count("spills")
    state.count("bytes_written", e.stored_bytes)


def _spill_failed(state: State, e: ev.SpillFailed) -> None:
    state.count("spill_failures")
    blob = state.blobs.get(e.blob)
    if blob is None:
        return
    for node_id in list(blob.nodes):
        residency.leave_disk(state, state.nodes[node_id])
    state.disk_bytes -= blob.stored_bytes
    blob.disk_state, blob.stored_bytes = NOT_STORED, 0


def _piece_restored(state: State, e: ev.PieceRestored) -> None:
    state.count("restores")
    for node_id in e.nodes:
        residency.enter_memory(state, state.nodes[node_id])
        for entry_id in state.nodes[node_id].anchored:
            entry = state.entries[entry_id]
            if not entry.resident:
                entry.resident = True
                state.resident[entry_id] = None
    for node_id in e.nodes:
        residency.touch(state, node_id)


def _prefix_restored(state: State, e: ev.PrefixRestored) -> None:
    request = state.requests[e.request]
    count_hit(state, request)
    request.restore = []


def _restore_failed(state: State, e: ev.RestoreFailed) -> None:
    request = state.requests[e.request]
    residency.release(state, request.node)
    request.node, request.adopted, request.kept = state.namespaces[request.namespace].root, 0, 0
    request.source, request.restore = "cold", []
    state.count("restore_failures")


def _prefix_pinned(state: State, e: ev.PrefixPinned) -> None:
    if e.before:
        unpin(state, e.name)
    pin(state, Pin(e.name, e.entry, e.caller, state.now_us))


def _prefix_unpinned(state: State, e: ev.PrefixUnpinned) -> None:
    unpin(state, e.name)


def _promotion_started(state: State, e: ev.PromotionStarted) -> None:
    node, entry = state.nodes[e.node], state.entries[e.entry]
    state.requests[e.request] = Request(
        e.request, node.namespace, entry.template_sig, entry.session_key, b"", False, -1, state.now_us, e.node,
        node.end, node.end, PROMOTION, list(e.restore), e.entry,
    )  # fmt: skip
    residency.lease(state, e.node)


def _told(state: State, e: ev.Event) -> None:
    """The event is for its reader: other events of the record made the change."""


def _sweep_done(state: State, e: ev.SweepDone) -> None:
    state.count("sweeps")


HANDLERS: dict[type, Callable[[State, Any], None]] = {
    ev.PieceEvicted: _piece_evicted,
    ev.EntryEvicted: _entry_evicted,
    ev.SpillQueued: _spill_queued,
    ev.PieceSpilled: _piece_spilled,
    ev.SpillFailed: _spill_failed,
    ev.PieceRestored: _piece_restored,
    ev.PrefixRestored: _prefix_restored,
    ev.RestoreFailed: _restore_failed,
    ev.SweepDone: _sweep_done,
    ev.PrefixPinned: _prefix_pinned,
    ev.PrefixUnpinned: _prefix_unpinned,
    ev.PromotionStarted: _promotion_started,
    ev.EntriesDeleted: _told,
    ev.EntryDemoted: _told,
    ev.OperationRefused: _told,
    ev.MemoryShrunk: _told,
}
