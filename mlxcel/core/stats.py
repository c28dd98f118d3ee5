"""The numbers of `GET /v1/cache/stats`, as a fold over the state. Names: prompt cache guide and its facts sheet (2.1)."""

from mlxcel.core.keys import NO_PARENT, block_chain
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.state import MEMORY, STORED, State


def cache_stats(state: State) -> dict[str, int | float | str | bool | None]:
    """Return the flat object of cache statistics; byte gauges count what is held, each blob once."""
    policy, count = state.policy, state.counters.get
    entries = len(state.resident)
    snapshots = len(state.lru[MEMORY, True])  # each snapshot node has a blob of its own
    snapshot_lookups = count("snapshot_lookups", 0)
    lookups, hits = count("lookups", 0), count("hits", 0)
    snapshot_bytes = state.memory_bytes[True]
    on_disk = sum(1 for e in state.entries.values() if _on_disk(state, e.node))
    stats: dict[str, int | float | str | bool | None] = {
        "enabled": policy.active,
        "apc_enabled": policy.active and policy.apc_enabled,
        "block_size": policy.block_size,
        "entries": entries,
        "bytes": state.memory_bytes[False] + snapshot_bytes,
        "capacity_bytes": policy.capacity_bytes,
        "max_entries": policy.max_entries,
        "hits": hits,
        "lookups": lookups,
        "misses": count("misses", 0),
        "hit_rate": hits / lookups if lookups else 0.0,
        "prefix_tokens_reused": count("prefix_tokens_reused", 0),
        "inserts": count("inserts", 0),
        "evictions_lru": count("evictions_lru", 0),
        "evictions_ttl": count("evictions_ttl", 0),
        "rejections_oversized": count("rejections_oversized", 0),
        "snapshot_entries": snapshots,
        "snapshot_bytes": snapshot_bytes,
        "snapshot_capacity_bytes": policy.snapshot_capacity_bytes,
        "snapshot_max_entries": policy.snapshot_max_entries,
        "snapshot_bytes_per_entry": snapshot_bytes // snapshots if snapshots else 0,
        "snapshot_headroom_bytes": max(0, policy.snapshot_capacity_bytes - snapshot_bytes),
        "snapshot_hits": count("snapshot_hits", 0),
        "snapshot_lookups": snapshot_lookups,
        "snapshot_hit_rate": count("snapshot_hits", 0) / snapshot_lookups if snapshot_lookups else 0.0,
        "snapshot_evictions_lru": count("snapshot_evictions_lru", 0),
        "snapshot_evictions_ttl": count("snapshot_evictions_ttl", 0),
        "snapshot_self_evictions": count("snapshot_self_evictions", 0),
        "snapshot_rejections_oversized": count("snapshot_rejections_oversized", 0),
        "snapshot_tokens_reused": count("snapshot_tokens_reused", 0),
        "snapshot_inserts": count("snapshot_inserts", 0),
        "snapshot_supersedes": count("snapshot_supersedes", 0),
        "pinned_entries": len({pin.entry for pin in state.pins.values()}),
        "pinned_bytes": _pinned_bytes(state),
        "memory_cap_bytes": policy.memory_cap_bytes,
        "pieces": len(state.blobs),
        "leases": sum(1 for r in state.requests.values() if state.nodes[r.node].parent),
        "requests_running": len(state.requests),
        "disk_entries": on_disk,
        "disk_bytes": state.disk_bytes,
        "disk_capacity_bytes": policy.disk_capacity_bytes,
        "disk_pieces": sum(1 for b in state.blobs.values() if b.disk_state == STORED),
        "disk_hits": count("disk_hits", 0),
        "restores": count("restores", 0),
        "restore_failures": count("restore_failures", 0),
        "spills": count("spills", 0),
        "spill_failures": count("spill_failures", 0),
        "disk_evictions_lru": count("disk_evictions_lru", 0),
        "disk_evictions_ttl": count("disk_evictions_ttl", 0),
        "bytes_written": count("bytes_written", 0),
        "served_cold": count("served_cold", 0),
    }
    for reason in RefusalReason:
        stats[f"reject_{reason}"] = state.reject_reasons.get(reason, 0)
    stats.update(_last_reject(state))
    return stats


def _pinned_bytes(state: State) -> int:
    """Bytes in memory that pins hold, each piece once."""
    nodes = (node for pin in state.pins.values() for node in state.path(state.entries[pin.entry].node))
    return sum(state.blobs[blob].nbytes for blob in {node.blob for node in nodes} if state.in_memory(blob))


def _on_disk(state: State, node_id: int) -> bool:
    node = state.nodes[node_id]
    return bool(node.parent) and state.blobs[node.blob].disk_state == STORED


def _last_reject(state: State) -> dict[str, int | float | str | bool | None]:
    reason, request, context, entry, at_ms = state.last_reject or (None, None, None, None, None)
    return {
        "last_reject_reason": reason,
        "last_reject_request": request,
        "last_reject_context_len": context,
        "last_reject_entry_len": entry or None,
        "last_reject_at_unix_ms": at_ms,
    }


def block_stats(state: State, algorithm: str) -> dict[str, int]:
    """Return the APC block counts. Chains are built here, off every request's path, along the tree: each block is hashed
    once, however many entries share it."""
    if not state.policy.apc_enabled:
        return {"total_blocks_stored": 0, "unique_block_hashes": 0, "apc_active_entries": 0}
    total, active = 0, 0
    chains: dict[int, list[bytes]] = {}  # node -> hashes of its own blocks
    for entry_id in state.resident:
        entry = state.entries[entry_id]
        namespace = state.namespaces[entry.namespace]
        if namespace.reuse != "prefix":
            continue
        parent = NO_PARENT
        for node in state.path(entry.node):
            if node.id not in chains:
                chains[node.id] = block_chain(
                    node.label, namespace.block_size, namespace.key.media_digest, algorithm, parent
                )
            parent = chains[node.id][-1]
            total += len(chains[node.id])
        active += 1
    unique = sum(len(chain) for chain in chains.values())
    return {"total_blocks_stored": total, "unique_block_hashes": unique, "apc_active_entries": active}
