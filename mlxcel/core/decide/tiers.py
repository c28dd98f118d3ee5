"""Decisions about where pieces live: after writes, after restores, and as time passes."""

from collections.abc import Iterable

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.evict import EvictionPlan, disk_order
from mlxcel.core.state import DISK, MEMORY, QUEUED, State


def decide_spills(state: State, c: cmd.RecordSpills) -> list[ev.Event]:
    """Book what the disk tier wrote or failed to write; then keep the tier within its capacity."""
    plan = EvictionPlan(state)
    waiting = [r for r in c.results if r.blob in state.blobs and state.blobs[r.blob].disk_state == QUEUED]
    failed = [r for r in waiting if r.error]
    for result in failed:
        for node_id in state.blobs[result.blob].nodes:
            node = state.nodes[node_id]
            if not node.memory and plan.holds(node, DISK):
                plan.evict(node, DISK, "lost")
    lost = [*plan.events, *(ev.SpillFailed(r.blob, r.error) for r in failed)]
    plan.events = []
    written = [r for r in waiting if not r.error and _still_held(state, plan, r.blob)]
    plan.protected = {node_id for r in written for node_id in state.blobs[r.blob].nodes}
    added = sum(r.stored_bytes for r in written)
    over = state.disk_bytes + added - plan.freed_bytes[DISK] - state.policy.disk_capacity_bytes
    plan.make_room(DISK, over, disk_order(state))
    return [*lost, *(ev.PieceSpilled(r.blob, r.stored_bytes) for r in written), *plan.events]


def _still_held(state: State, plan: EvictionPlan, blob: int) -> bool:
    return any(plan.holds(state.nodes[node_id], DISK) for node_id in state.blobs[blob].nodes)


def decide_restore(state: State, c: cmd.RecordRestore) -> list[ev.Event]:
    """What a request waited for is in memory, or can't be had: then what is lost leaves the tree."""
    request = state.requests[c.request]
    if c.error:
        return _restore_failed(state, c)
    path = state.path(request.node)
    waiting = set(request.restore)
    nodes = {blob: [n.id for n in path if n.blob == blob and not n.memory] for blob in request.restore}
    events: list[ev.Event] = []
    plan = EvictionPlan(state, {n.id for n in path})
    for snapshot in (False, True):
        need = sum(
            state.blobs[b].nbytes for b in waiting if state.blobs[b].snapshot == snapshot and not state.in_memory(b)
        )
        capacity = state.policy.snapshot_capacity_bytes if snapshot else state.policy.capacity_bytes
        over = state.memory_bytes[snapshot] + need - capacity
        if not plan.make_room(MEMORY, over, state.lru[MEMORY, snapshot]):
            for blob in waiting:
                if state.blobs[blob].snapshot == snapshot:
                    nodes[blob] = []
    events += plan.events
    events += [ev.PieceRestored(blob, nodes[blob]) for blob in request.restore]
    return [*events, ev.PrefixRestored(c.request)]


def _restore_failed(state: State, c: cmd.RecordRestore) -> list[ev.Event]:
    """All requests that wait for the lost piece go on cold; unless somebody else still stands below it, it is dropped."""
    events: list[ev.Event] = [ev.RestoreFailed(c.request, c.lost, c.error)]
    blob = state.blobs.get(c.lost)
    if blob is None:
        return events
    waiting = [r for r in state.requests.values() if c.lost in r.restore and r.id != c.request]
    events += [ev.RestoreFailed(r.id, c.lost, c.error) for r in sorted(waiting, key=lambda r: r.id)]
    plan = EvictionPlan(state)
    for node_id in blob.nodes:
        node = state.nodes[node_id]
        below = plan.subtree(node)
        leases = sum(1 for r in [*waiting, state.requests[c.request]] if node in state.path(r.node))
        settled = all(n.leases <= leases for n in [node, *below])
        if settled and plan.holds(node, DISK) and not node.memory:
            plan.evict(node, DISK, "lost")
    return [*events, *plan.events]


def decide_sweep(state: State, c: cmd.SweepExpired) -> list[ev.Event]:
    """Take out what is past its time: from memory after `ttl`, from disk after `disk_ttl`; at most `limit` victims."""
    plan = EvictionPlan(state)
    policy = state.policy
    for entry_id in sorted(state.short_lived):
        entry = state.entries[entry_id]
        if plan.victims < c.limit and entry.ttl_us and entry.last_used_us + entry.ttl_us <= c.at_us:
            _expire_entry(state, plan, entry_id)
    for tier, snapshot, ttl_us in (
        (MEMORY, True, policy.snapshot_ttl_us),
        (MEMORY, False, policy.ttl_us),
        (DISK, True, policy.disk_ttl_us),
        (DISK, False, policy.disk_ttl_us),
    ):
        if ttl_us:
            _expire(state, plan, tier, state.lru[tier, snapshot], c.at_us - ttl_us, c)
    if not plan.events:
        return []
    return [*plan.events, ev.SweepDone(plan.victims, plan.victims >= c.limit)]


def _expire(
    state: State, plan: EvictionPlan, tier: str, order: Iterable[int], before_us: int, c: cmd.SweepExpired
) -> None:
    for node_id in order:
        node = state.nodes[node_id]
        if plan.victims >= c.limit or node.last_used_us > before_us:
            return
        if node.keep_until_us <= c.at_us and plan.evictable(node, tier):
            plan.evict(node, tier, "ttl")


def _expire_entry(state: State, plan: EvictionPlan, entry_id: int) -> None:
    """An entry with a time to live of its own leaves both tiers with the pieces that only it uses."""
    entry = state.entries[entry_id]
    if plan.is_dead(entry_id):
        return
    plan.kill_entry(entry_id, "ttl")
    node = state.nodes[entry.node]
    while node.parent and not plan.in_use(node):
        for tier in (DISK, MEMORY):
            if plan.evictable(node, tier):
                plan.evict(node, tier, "ttl", final=True)
        if plan.holds(node, MEMORY) or plan.holds(node, DISK):
            return
        node = state.nodes[node.parent]
