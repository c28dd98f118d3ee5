"""Decisions about where pieces live: after writes, after restores, and as time passes."""

from collections.abc import Iterable

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.deadline import overdue
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.room import BOTH, limit_entries, limit_snapshots, make_disk_room, make_room
from mlxcel.core.state import DISK, MEMORY, PROMOTION, QUEUED, Request, State


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
    over = state.disk_bytes + added - plan.freed_bytes(DISK) - state.policy.disk_capacity_bytes
    make_disk_room(plan, over)
    return [*lost, *(ev.PieceSpilled(r.blob, r.stored_bytes) for r in written), *plan.events]


def _still_held(state: State, plan: EvictionPlan, blob: int) -> bool:
    return any(plan.holds(state.nodes[node_id], DISK) for node_id in state.blobs[blob].nodes)


def decide_restore(state: State, c: cmd.RecordRestore) -> list[ev.Event]:
    """What a request waited for is in memory, or can't be had: then what is lost leaves the tree."""
    request = state.requests[c.request]
    errand = request.source == PROMOTION
    if c.error:
        events = _restore_failed(state, c)
        return [*events, ev.RequestEnded(c.request, "promotion_failed", c.error)] if errand else events
    path = state.path(request.node)
    plan = EvictionPlan(state, (n.id for n in path))
    kept = {blob for kind in BOTH for blob in _restorable(state, plan, request, kind, c.live_bytes)}
    nodes = {blob: [n.id for n in path if n.blob == blob and not n.memory] for blob in kept}
    back = [e for n in path if n.blob in kept and not n.memory for e in n.anchored if not state.entries[e].resident]
    if not limit_entries(plan, 0, len(back)):
        nodes = {}
    events = [*plan.events, *(ev.PieceRestored(blob, nodes.get(blob, [])) for blob in request.restore)]
    return [*events, ev.RequestEnded(c.request, "promoted", "") if errand else ev.PrefixRestored(c.request)]


def _restorable(state: State, plan: EvictionPlan, request: Request, kind: bool, live_bytes: int) -> list[int]:
    """Return the awaited blobs of a kind if room for them can be made: all of them or none stay in memory."""
    policy = state.policy
    waiting = [b for b in request.restore if state.blobs[b].snapshot == kind]
    need = sum(state.blobs[b].nbytes for b in waiting if not state.in_memory(b))
    capacity = policy.snapshot_capacity_bytes if kind else policy.capacity_bytes
    fits = make_room(plan, plan.memory_bytes((kind,)) + need - capacity, (kind,))
    fits = fits and (not kind or limit_snapshots(plan, len(waiting)))
    if fits and policy.memory_cap_bytes:
        others = sum(state.blobs[b].nbytes for b in request.restore if not state.in_memory(b))
        fits = make_room(plan, plan.memory_bytes() + others + live_bytes - policy.memory_cap_bytes, BOTH)
    return waiting if fits else []


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
        due = overdue(state.entries[entry_id], c.at_us)
        if due and plan.victims < c.limit and not plan.is_dead(entry_id):
            plan.end_entry(entry_id, "ttl")
    if policy.ranking == "entry-lru" and policy.ttl_us:
        _expire_entries(state, plan, c)
    for tier, snapshot, ttl_us in (
        (MEMORY, True, policy.snapshot_ttl_us),
        (MEMORY, False, policy.ttl_us),
        (DISK, True, policy.disk_ttl_us),
        (DISK, False, policy.disk_ttl_us),
    ):
        if ttl_us:
            _expire(state, plan, tier, state.lru[tier, snapshot], c.at_us - ttl_us, c)
    closed = _bare_namespaces(state, max(0, c.limit - plan.victims))
    victims = plan.victims + len(closed)
    if not victims:
        return []
    return [*plan.events, *closed, ev.SweepDone(victims, victims >= c.limit)]


def _bare_namespaces(state: State, limit: int) -> list[ev.Event]:
    """Return endings of namespaces that held nothing before this sweep and that nobody uses: salts come and go.

    The newest of each model stays, since it tells what that model was made of.
    """
    in_use = {request.namespace for request in state.requests.values()}
    models: set[str] = set()
    closed: list[ev.Event] = []
    for namespace in reversed(state.namespaces.values()):
        newest, root = namespace.model_id not in models, state.nodes[namespace.root]
        models.add(namespace.model_id)
        if not (newest or namespace.id in in_use or root.children or root.snapshots) and len(closed) < limit:
            closed.append(ev.NamespaceClosed(namespace.id))
    return closed


def _expire_entries(state: State, plan: EvictionPlan, c: cmd.SweepExpired) -> None:
    """The guide's time to live counts for each entry, whoever else uses its pieces."""
    for entry_id in state.resident:
        entry = state.entries[entry_id]
        if plan.victims >= c.limit or entry.last_used_us + state.policy.ttl_us > c.at_us:
            return
        own_time = entry.ttl_us >= 0 or entry.pins or state.nodes[entry.node].snapshot
        if not own_time and plan.in_memory(entry_id):
            plan.drop_entry(entry_id, "ttl")


def _expire(
    state: State, plan: EvictionPlan, tier: str, order: Iterable[int], before_us: int, c: cmd.SweepExpired
) -> None:
    for node_id in order:
        node = state.nodes[node_id]
        if plan.victims >= c.limit or node.last_used_us > before_us:
            return
        if node.keep_until_us <= c.at_us and plan.evictable(node, tier):
            plan.evict(node, tier, "ttl")
