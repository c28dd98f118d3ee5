"""The whole state as bytes and back, and its fingerprint. A checkpoint opens each log segment, so a segment replays alone."""

from collections import OrderedDict
from typing import Any

import msgspec
from blake3 import blake3

from mlxcel.core.policy import Policy
from mlxcel.core.residency import child_key, index_cuttable
from mlxcel.core.state import DISK, MEMORY, Blob, Entry, Namespace, Node, Pin, Request, State

FORMAT = 1


class Checkpoint(msgspec.Struct, array_like=True):
    """Wire form of a state. Recency orders are lists of node numbers, least recent first. Fields are only appended."""

    format: int
    now_us: int
    policy: Policy
    logic_version: int
    next_ids: list[int]
    namespaces: list[Namespace]
    nodes: list[list[Any]]
    blobs: list[Blob]
    entries: list[Entry]
    requests: list[Request]
    counters: dict[str, int]
    reject_reasons: dict[str, int]
    last_reject: list[Any]
    resident: list[int]
    latest_in_session: list[tuple[int, str, int]]
    orders: list[list[int]]
    pins: list[Pin] = []


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Checkpoint)
_ORDERS = [(tier, snapshot) for tier in (MEMORY, DISK) for snapshot in (False, True)]


def encode_state(state: State) -> bytes:
    """Return the state as bytes; equal states give equal bytes."""
    nodes = [_pack(node) for node in sorted(state.nodes.values(), key=lambda n: n.id)]
    blobs = sorted(state.blobs.values(), key=lambda b: b.id)
    return _encoder.encode(
        Checkpoint(
            FORMAT, state.now_us, state.policy, state.logic_version,
            [state.next_namespace, state.next_node, state.next_blob, state.next_entry],
            sorted(state.namespaces.values(), key=lambda n: n.id), nodes, blobs, list(state.entries.values()),
            sorted(state.requests.values(), key=lambda r: r.id), state.counters, state.reject_reasons,
            state.last_reject, list(state.resident),
            sorted((ns, session, entry) for (ns, session), entry in state.latest_in_session.items()),
            [list(state.lru[order]) for order in _ORDERS], list(state.pins.values()),
        )
    )  # fmt: skip


def _pack(n: Node) -> list[Any]:
    return [
        n.id, n.parent, n.namespace, n.blob, n.row, n.start, n.label, n.last_used_us, n.snapshot, n.origin,
        n.session_key, n.leases, n.pinned, n.memory, n.disk, n.keep_until_us, n.via, n.uses, n.anchored,
        n.template_sig, n.answer_tokens, *([True] if n.cuttable else []),  # left out: fingerprints from before it hold
    ]  # fmt: skip


def decode_state(payload: bytes) -> State:
    """Rebuild a state from bytes. Raises msgspec.MsgspecError, KeyError or ValueError for bytes that are no checkpoint."""
    c = _decoder.decode(payload)
    try:
        return _state_of(c)
    except (TypeError, IndexError, OverflowError, AttributeError) as fault:
        raise ValueError(f"the checkpoint contradicts itself: {fault}") from fault


def _state_of(c: Checkpoint) -> State:
    state = State()
    state.now_us, state.policy, state.logic_version = c.now_us, c.policy, c.logic_version
    state.next_namespace, state.next_node, state.next_blob, state.next_entry = c.next_ids
    state.namespaces = {n.id: n for n in c.namespaces}
    state.by_namespace = {n.digest: n.id for n in c.namespaces}
    for namespace in c.namespaces:
        state.related.setdefault(namespace.key.relatives(namespace.fingerprint_parts), []).append(namespace.id)
    state.pins = {pin.name: pin for pin in c.pins}
    state.blobs = {b.id: b for b in c.blobs}
    state.blob_by_key = {b.key: b.id for b in c.blobs}
    state.requests = {r.id: r for r in c.requests}
    state.counters, state.reject_reasons, state.last_reject = c.counters, c.reject_reasons, c.last_reject
    for packed in c.nodes:
        node = Node(*packed[:18])
        node.anchored, node.template_sig = packed[18], packed[19]
        node.answer_tokens = packed[20] if len(packed) > 20 else 0  # checkpoints before it was kept
        node.cuttable = packed[21] if len(packed) > 21 else False
        state.nodes[node.id] = node
    for entry in c.entries:
        state.entries[entry.id] = entry
        state.by_digest[entry.namespace, entry.digest] = entry.id
        state.buckets.setdefault((entry.namespace, entry.template_sig), {})[entry.id] = None
        if entry.ttl_us >= 0:
            state.short_lived[entry.id] = None
    state.resident = OrderedDict.fromkeys(c.resident)
    state.latest_in_session = {(ns, session): entry for ns, session, entry in c.latest_in_session}
    for order, node_ids in zip(_ORDERS, c.orders, strict=True):
        state.lru[order] = OrderedDict.fromkeys(node_ids)
    _link(state)
    return state


def _link(state: State) -> None:
    """Rebuild what is derived: children tables, counts of resident children, bytes."""
    for node in state.nodes.values():
        if not node.parent:
            continue
        parent = state.nodes[node.parent]
        parent.memory_children += node.memory
        parent.disk_children += node.disk
        if node.snapshot:
            parent.snapshots = parent.snapshots or {}
            parent.snapshots[node.label] = node.id
            state.session_snapshots.setdefault((node.namespace, node.session_key), {})[node.id] = None
            index_cuttable(state, node)
        else:
            parent.children = parent.children or {}
            parent.children[child_key(state, node)] = node.id
    for blob in state.blobs.values():
        if blob.memory_refs:
            state.memory_bytes[blob.snapshot] += blob.nbytes
        state.disk_bytes += blob.stored_bytes


def fingerprint(state: State) -> str:
    """Return 64 hex characters that equal states share (BLAKE3 over the checkpoint bytes)."""
    return blake3(encode_state(state)).hexdigest()
