"""What the cache holds, as an operator reads it. Engine thread only; nothing is changed."""

from typing import Any

import msgspec

from mlxcel.core.state import MEMORY, STORED, Entry, Node, State
from mlxcel.core.tokens import TOKEN_BYTES, count, cut

MOST_SHARERS = 50


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are meant. A field that is None lets every entry through. Ages are seconds since the last use."""

    model: str | None = None
    session: str | None = None
    tier: str | None = None  # "memory" or "disk"
    tenant_prefix: str | None = None
    older_than_s: float | None = None
    younger_than_s: float | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None


def chosen(state: State, wanted: EntryFilter, now_us: int) -> list[Entry]:
    """Return the entries that match, most recently used first."""
    found = [entry for entry in state.entries.values() if _matches(state, entry, wanted, now_us)]
    return sorted(found, key=lambda entry: (-entry.last_used_us, entry.id))


def _matches(state: State, entry: Entry, wanted: EntryFilter, now_us: int) -> bool:
    namespace = state.namespaces[entry.namespace]
    age_s, nbytes = (now_us - entry.last_used_us) / 1e6, entry_bytes(state, entry)
    return (
        (wanted.model is None or namespace.model_id == wanted.model)
        and (wanted.session is None or entry.session_key == wanted.session)
        and (wanted.tier is None or tiers_of(state, entry)[wanted.tier])
        and (wanted.tenant_prefix is None or namespace.key.tenant_salt.partition(":")[0] == wanted.tenant_prefix)
        and (wanted.older_than_s is None or age_s >= wanted.older_than_s)
        and (wanted.younger_than_s is None or age_s <= wanted.younger_than_s)
        and (wanted.min_bytes is None or nbytes >= wanted.min_bytes)
        and (wanted.max_bytes is None or nbytes <= wanted.max_bytes)
    )


def entry_bytes(state: State, entry: Entry) -> int:
    """Return the bytes of KV that the entry reaches, shared pieces included."""
    node = state.nodes[entry.node]
    state_bytes = state.blobs[node.blob].nbytes if node.snapshot else 0
    return entry.length * state.namespaces[entry.namespace].kv_bytes_per_token + state_bytes


def tiers_of(state: State, entry: Entry) -> dict[str, bool]:
    """Say where the entry's end lies."""
    node = state.nodes[entry.node]
    on_disk = bool(node.parent) and state.blobs[node.blob].disk_state == STORED
    return {MEMORY: bool(entry.resident), "disk": on_disk}


def summary(state: State, entry: Entry, now_us: int) -> dict[str, Any]:
    """Return one line of the list."""
    namespace = state.namespaces[entry.namespace]
    return {
        "entry": entry.id,
        "digest": entry.digest.hex(),
        "model": namespace.model_id,
        "session": entry.session_key,
        "template_sig": entry.template_sig,
        "origin": entry.origin,
        "tokens": entry.length,
        "bytes": entry_bytes(state, entry),
        "tiers": [tier for tier, held in tiers_of(state, entry).items() if held],
        "hits": entry.hits,
        "created_unix_ms": entry.created_us // 1000,
        "idle_s": round((now_us - entry.last_used_us) / 1e6, 3),
        "ttl_s": entry.ttl_us / 1e6 if entry.ttl_us >= 0 else None,
        "pins": sorted(name for name, pin in state.pins.items() if pin.entry == entry.id),
    }


def detail(state: State, entry: Entry, now_us: int) -> dict[str, Any]:
    """Return the summary with the chain of pieces and the entries that use the same ones."""
    path = state.path(entry.node)
    sharers, shared_up_to = _sharers(state, entry, {node.id: node.end for node in path})
    pieces = [{**_piece(state, node), "shared": node.end <= shared_up_to} for node in path]
    return {**summary(state, entry, now_us), "chain": pieces, "shares_with": sharers}


def _piece(state: State, node: Node) -> dict[str, Any]:
    blob = state.blobs[node.blob]
    return {
        "node": node.id,
        "start": node.start,
        "tokens": node.tokens,
        "snapshot": node.snapshot,
        "blob": blob.id,
        "key": blob.key.hex(),
        "blob_bytes": blob.nbytes,
        "stored_bytes": blob.stored_bytes,
        "in_memory": blob.memory_refs > 0,
        "on_disk": blob.disk_state == STORED,
        "leases": node.leases,
        "uses": node.uses,
    }


def _sharers(state: State, entry: Entry, ends: dict[int, int]) -> tuple[list[dict[str, int]], int]:
    found: list[dict[str, int]] = []
    for other in state.entries.values():
        if other.namespace == entry.namespace and other.id != entry.id:
            common = max((ends[node.id] for node in state.path(other.node) if node.id in ends), default=0)
            if common:
                found.append({"entry": other.id, "tokens": common})
    found.sort(key=lambda row: -row["tokens"])
    return found[:MOST_SHARERS], found[0]["tokens"] if found else 0


def token_ids(state: State, entry: Entry) -> list[int]:
    """Return the entry's tokens."""
    raw = state.path_tokens(entry.node)
    return [int.from_bytes(raw[at : at + TOKEN_BYTES], "little") for at in range(0, len(raw), TOKEN_BYTES)]


def entry_of(state: State, namespace: int, session_key: str, tokens: bytes) -> int:
    """Return the session's entry that holds these very tokens (up to a block's end if its model is cut by blocks) and
    whose pieces some tier can give; 0 when there is none."""
    for entry in state.entries.values():
        if (entry.namespace, entry.session_key) != (namespace, session_key):
            continue
        block = 1 if state.nodes[entry.node].snapshot else state.namespaces[namespace].block_size
        if entry.length != count(tokens) // block * block or state.path_tokens(entry.node) != cut(
            tokens, 0, entry.length
        ):
            continue
        if all(state.readable(node.blob) for node in state.path(entry.node)):
            return entry.id
    return 0


def held_by(state: State, tenant_prefix: str) -> dict[str, Any]:
    """Return the gauges of one tenant: what its own entries hold."""
    mine = chosen(state, EntryFilter(tenant_prefix=tenant_prefix), state.now_us)
    nodes = {node.id: node for entry in mine for node in state.path(entry.node)}
    blobs = {node.blob: state.blobs[node.blob] for node in nodes.values()}.values()
    in_memory = [blob for blob in blobs if blob.memory_refs]
    return {
        "entries": sum(1 for entry in mine if entry.resident),
        "bytes": sum(blob.nbytes for blob in in_memory),
        "snapshot_entries": sum(1 for blob in in_memory if blob.snapshot),
        "snapshot_bytes": sum(blob.nbytes for blob in in_memory if blob.snapshot),
        "disk_entries": sum(1 for entry in mine if tiers_of(state, entry)["disk"]),
        "disk_bytes": sum(blob.stored_bytes for blob in blobs if blob.disk_state == STORED),
    }
