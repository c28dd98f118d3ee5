"""Making room: who leaves next. The recency orders stand so that their front is always a leaf."""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain

from mlxcel.core.evict import EvictionPlan
from mlxcel.core.state import DISK, MEMORY, Node, State

BOTH = (False, True)
DRAIN_VICTIMS = 64


def make_room(
    plan: EvictionPlan, need_bytes: int, kinds: tuple[bool, ...], reason: str = "lru", limit: int = 0
) -> bool:
    """Free `need_bytes` of memory of these kinds (False: segments, True: snapshots); False when too little can go.

    Ranking "leaf-lru" takes the least recent leaf piece; "entry-lru" whole entries, least recent first, and between them
    pieces that no entry uses. At most `limit` victims, if that is not 0.
    """
    if need_bytes <= 0:
        return True
    start = plan.freed_bytes(MEMORY, kinds)
    by_entries = plan.state.policy.ranking == "entry-lru" and False in kinds
    for _ in _victims_by_entry(plan, kinds, reason) if by_entries else _victims_by_leaf(plan, kinds, reason):
        if plan.freed_bytes(MEMORY, kinds) - start >= need_bytes:
            return True
        if limit and plan.victims >= limit:
            return False
    return False


def make_budget_room(plan: EvictionPlan, new_bytes: int, capacity_bytes: int, kind: bool) -> bool:
    """Make `new_bytes` fit into the budget of segments or snapshots; False when too little can go.

    Where anything must go, the budget is drained to its low-water mark in one go, as far as a bounded step allows, so that
    the next donations need not evict.
    """
    kinds = (kind,)
    over = plan.memory_bytes(kinds) + new_bytes - capacity_bytes
    if not make_room(plan, over, kinds):
        return False
    slack = capacity_bytes - capacity_bytes * plan.state.policy.low_water_percent // 100
    if over > 0 and slack:
        low = plan.memory_bytes(kinds) + new_bytes - (capacity_bytes - slack)
        make_room(plan, low, kinds, limit=plan.victims + DRAIN_VICTIMS)
    return True


def make_disk_room(plan: EvictionPlan, need_bytes: int) -> bool:
    """Free bytes on disk: first what a changed model made useless, then the least recently used, of either kind."""
    if need_bytes <= 0:
        return True
    start = plan.freed_bytes(DISK)
    stale = _useless_namespaces(plan.state)
    first = (node for node in _by_age(plan.state, DISK, BOTH) if node.namespace in stale) if stale else ()
    for node in chain(first, _by_age(plan.state, DISK, BOTH)):
        if plan.evictable(node, DISK):
            plan.evict(node, DISK, "lru")
            if plan.freed_bytes(DISK) - start >= need_bytes:
                return True
    return False


def _useless_namespaces(state: State) -> set[int]:
    """Return namespaces of the served model's name whose fingerprint is not the one now loaded."""
    policy = state.policy
    return {
        namespace.id
        for namespace in state.namespaces.values()
        if namespace.model_id == policy.serves_model and namespace.key.model_fingerprint != policy.serves_fingerprint
    }


def limit_entries(plan: EvictionPlan, replaced: int, incoming: int = 1) -> bool:
    """Drop the least recent entries until so many more fit; False when pins hold too many. `replaced`: an entry that makes
    room itself."""
    state = plan.state
    excess = len(state.resident) + incoming - plan.demoted_entries - state.policy.max_entries
    excess -= bool(replaced) and plan.in_memory(replaced)
    for entry_id in state.resident:
        if excess <= 0:
            return True
        if entry_id != replaced and plan.in_memory(entry_id) and not state.entries[entry_id].pins:
            before = plan.demoted_entries
            plan.drop_entry(entry_id, "lru")
            excess -= plan.demoted_entries - before
    return excess <= 0


def limit_snapshots(plan: EvictionPlan, incoming: int) -> bool:
    """Evict the least recent snapshots from memory until `incoming` more fit in number; False when too many are held."""
    state = plan.state
    order = state.lru[MEMORY, True]
    over = len(order) + incoming - state.policy.snapshot_max_entries
    if over <= 0:
        return True
    over -= sum(1 for node_id in order if not plan.holds(state.nodes[node_id], MEMORY))
    for node_id in order:
        if over <= 0:
            return True
        node = state.nodes[node_id]
        if plan.evictable(node, MEMORY):
            plan.evict(node, MEMORY, "lru")
            over -= 1
    return over <= 0


def _by_age(state: State, tier: str, kinds: tuple[bool, ...]) -> Iterable[Node]:
    """Return nodes of a tier, least recently used first; at equal age snapshots before the segments that they need."""
    orders = [map(state.nodes.__getitem__, state.lru[tier, kind]) for kind in sorted(kinds, reverse=True)]
    return orders[0] if len(orders) == 1 else merge(*orders, key=lambda node: node.last_used_us)


def _victims_by_leaf(plan: EvictionPlan, kinds: tuple[bool, ...], reason: str) -> Iterator[None]:
    for node in _by_age(plan.state, MEMORY, kinds):
        if not node.snapshot and True not in kinds:
            _clear_snapshots(plan, node, reason)
        if plan.evictable(node, MEMORY):
            plan.evict(node, MEMORY, reason)
            yield


def _victims_by_entry(plan: EvictionPlan, kinds: tuple[bool, ...], reason: str) -> Iterator[None]:
    state = plan.state
    entries = (e for e in map(state.entries.__getitem__, state.resident) if not state.nodes[e.node].snapshot)
    aged_entries = ((entry.last_used_us, 0, entry.id) for entry in entries)
    aged_nodes = ((node.last_used_us, 1, node.id) for node in _by_age(state, MEMORY, kinds))
    for _, is_node, number in merge(aged_entries, aged_nodes, key=lambda aged: aged[:2]):
        if not is_node:
            if plan.in_memory(number) and not state.entries[number].pins:
                plan.drop_entry(number, reason)
                yield
            continue
        node = state.nodes[number]
        if not node.snapshot and True not in kinds:
            _clear_snapshots(plan, node, reason)
        if not plan.serves_entry(node) and plan.evictable(node, MEMORY):
            plan.evict(node, MEMORY, reason)
            yield


def _clear_snapshots(plan: EvictionPlan, node: Node, reason: str) -> None:
    """Snapshots at a segment go before it, if they are all that keeps it (their own budget is another)."""
    if not node.snapshots or not plan.free_to_go(node):
        return
    held = [s for s in map(plan.state.nodes.__getitem__, sorted(node.snapshots.values())) if plan.holds(s, MEMORY)]
    if held and plan.resident_below(node) == len(held) and all(map(plan.free_to_go, held)):
        for snapshot in held:
            plan.evict(snapshot, MEMORY, reason)
