"""Planning evictions without touching the state: what would leave a tier, in which order, and what dies with it.

The plan keeps an overlay of what it has already taken, so that several victims of one decision see each other. Victims come
from the recency order's front; a node with something resident below it, a lease or a pin is passed over.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import merge

from mlxcel.core import events as ev
from mlxcel.core.state import DISK, MEMORY, Node, State


class EvictionPlan:
    """Collects `events` for one decision. `freed_bytes[tier]`: bytes that the events so far give back.

    `protected`: nodes that this decision builds on and that must stay.
    """

    def __init__(self, state: State, protected: Collection[int] = ()) -> None:
        self.state = state
        self.protected = protected
        self.events: list[ev.Event] = []
        self.freed_bytes = {MEMORY: 0, DISK: 0}
        self.victims = 0
        self._gone: dict[str, set[int]] = {MEMORY: set(), DISK: set()}
        self._removed: set[int] = set()
        self._fewer: dict[tuple[str, int], int] = {}
        self._refs: dict[tuple[str, int], int] = {}
        self._anchored: dict[int, list[int]] = {}
        self._dead: set[int] = set()
        self._demoted: set[int] = set()
        self._queued: set[int] = set()

    # ------------------------------------------------------------------ what the plan would leave

    def holds(self, node: Node, tier: str) -> bool:
        """True when the node is resident in the tier after the plan so far."""
        if tier == DISK and node.id in self._queued:
            return True
        return (node.memory if tier == MEMORY else node.disk) and node.id not in self._gone[tier]

    def _below(self, node: Node, tier: str) -> int:
        have = node.memory_children if tier == MEMORY else node.disk_children
        return have - self._fewer.get((tier, node.id), 0)

    def _free_to_go(self, node: Node) -> bool:
        return not (node.leases or node.pinned or node.id in self.protected)

    def evictable(self, node: Node, tier: str) -> bool:
        """True when nothing holds the node in the tier. A node that would vanish must have nothing below in any tier."""
        if not self._free_to_go(node) or not self.holds(node, tier) or self._below(node, tier):
            return False
        other = DISK if tier == MEMORY else MEMORY
        if self.holds(node, other) or not self._below(node, other):
            return True
        return all(self._free_to_go(below) for below in self.subtree(node))

    def subtree(self, node: Node) -> list[Node]:
        """Return all nodes below `node` that the plan leaves in the tree, deepest first."""
        found = []
        for table in (node.children, node.snapshots):
            for child_id in sorted((table or {}).values()):
                if child_id not in self._removed:
                    child = self.state.nodes[child_id]
                    found.extend([*self.subtree(child), child])
        return found

    # ------------------------------------------------------------------ taking nodes out

    def evict(self, node: Node, tier: str, reason: str, final: bool = False) -> None:
        """Add the events that take `node` out of `tier`, and all that dies with it. `final`: it is not to live on on disk."""
        other = DISK if tier == MEMORY else MEMORY
        if tier == MEMORY and not final and reason in ("lru", "ttl") and not self.holds(node, DISK):
            self._write_first(node)
        if not self.holds(node, other):
            for below in self.subtree(node):
                for where in (MEMORY, DISK):
                    if self.holds(below, where):
                        self._leave(below, where, "unreachable")
        self._leave(node, tier, reason)
        self.victims += 1

    def _write_first(self, node: Node) -> None:
        """Write policy "on-evict": what leaves memory unwritten is queued for the disk tier."""
        policy = self.state.policy
        if policy.write_policy != "on-evict" or policy.disk_capacity_bytes <= 0:
            return
        self.events.append(ev.SpillQueued(node.blob))
        for holder in self.state.blobs[node.blob].nodes:
            if not self.state.nodes[holder].disk and holder not in self._removed:
                self._queued.add(holder)
                parent = self.state.nodes[holder].parent
                self._fewer[DISK, parent] = self._fewer.get((DISK, parent), 0) - 1

    def _leave(self, node: Node, tier: str, reason: str) -> None:
        other = DISK if tier == MEMORY else MEMORY
        vanishes = not self.holds(node, other)
        self._settle_entries(node, tier, reason, vanishes)
        blob = self.state.blobs[node.blob]
        have = blob.memory_refs if tier == MEMORY else blob.disk_refs
        self._refs[tier, blob.id] = self._refs.get((tier, blob.id), 0) + 1
        freed = 0
        if self._refs[tier, blob.id] == have:
            freed = blob.nbytes if tier == MEMORY else blob.stored_bytes
            self.freed_bytes[tier] += freed
        last = self._refs[tier, blob.id] == have
        self.events.append(ev.PieceEvicted(node.id, tier, reason, blob.id if last else 0, freed))
        self._gone[tier].add(node.id)
        self._fewer[tier, node.parent] = self._fewer.get((tier, node.parent), 0) + 1
        if vanishes:
            self._removed.add(node.id)

    # ------------------------------------------------------------------ entries that end here

    def _entries_at(self, node: Node) -> list[int]:
        return [e for e in self._anchored.get(node.id, node.anchored) if e not in self._dead]

    def _settle_entries(self, node: Node, tier: str, reason: str, vanishes: bool) -> None:
        for entry_id in self._entries_at(node):
            if vanishes:
                parent = self.state.nodes[node.parent]
                if self._is_own(parent, node):
                    self._anchored[parent.id] = [*self._entries_at(parent), entry_id]
                else:
                    self._dead.add(entry_id)
                    self.events.append(ev.EntryEvicted(entry_id, reason, "all" if tier == MEMORY else "disk"))
            elif tier == MEMORY and self.state.entries[entry_id].resident and entry_id not in self._demoted:
                self._demoted.add(entry_id)
                self.events.append(ev.EntryEvicted(entry_id, reason, MEMORY))

    def _is_own(self, parent: Node, leaving: Node) -> bool:
        """True when the parent serves only the entries that end at `leaving`: they may shrink to it."""
        if not parent.parent or self._entries_at(parent) or leaving.snapshot:
            return False
        others = [c for c in (parent.children or {}).values() if c != leaving.id and c not in self._removed]
        return not others and not any(c not in self._removed for c in (parent.snapshots or {}).values())

    def drop_entry(self, entry_id: int, reason: str) -> None:
        """Take an entry out of memory with the pieces that only it uses (the guide's entry eviction).

        Its pieces stay on disk where they are kept there; without them the entry is gone altogether.
        """
        entry = self.state.entries[entry_id]
        node = self.state.nodes[entry.node]
        if not node.disk:
            self._dead.add(entry_id)
            self.events.append(ev.EntryEvicted(entry_id, reason, "all"))
        elif entry_id not in self._demoted:
            self._demoted.add(entry_id)
            self.events.append(ev.EntryEvicted(entry_id, reason, MEMORY))
        self.victims += 1
        while node.parent and not self._wanted(node) and self.evictable(node, MEMORY):
            self.evict(node, MEMORY, reason)
            node = self.state.nodes[node.parent]

    def is_dead(self, entry_id: int) -> bool:
        """True when the plan has ended the entry."""
        return entry_id in self._dead

    def kill_entry(self, entry_id: int, reason: str) -> None:
        """End an entry in every tier; its pieces are the caller's to evict."""
        self._dead.add(entry_id)
        self.events.append(ev.EntryEvicted(entry_id, reason, "all"))
        self.victims += 1

    def in_use(self, node: Node) -> bool:
        """True when a living entry ends at the node or anything hangs below it."""
        below = [*(node.children or {}).values(), *(node.snapshots or {}).values()]
        return bool(self._entries_at(node)) or any(c not in self._removed for c in below)

    def _wanted(self, node: Node) -> bool:
        return any(self.state.entries[e].resident and e not in self._demoted for e in self._entries_at(node))

    # ------------------------------------------------------------------ making room

    def make_room(self, tier: str, need_bytes: int, order: Iterable[int], reason: str = "lru") -> bool:
        """Evict from the front of `order` until `need_bytes` are freed; False when too little can go."""
        start = self.freed_bytes[tier]
        if need_bytes <= 0:
            return True
        for node_id in order:
            node = self.state.nodes[node_id]
            if node.snapshot is False and tier == MEMORY:
                self._clear_snapshots(node, reason)
            if self.evictable(node, tier):
                self.evict(node, tier, reason)
                if self.freed_bytes[tier] - start >= need_bytes:
                    return True
        return False

    def _clear_snapshots(self, node: Node, reason: str) -> None:
        """Snapshots at a segment go before it, if they are all that keeps it (their own budget is another)."""
        hanging = [self.state.nodes[s] for s in sorted((node.snapshots or {}).values())]
        held = [s for s in hanging if self.holds(s, MEMORY)]
        if (
            held
            and self._free_to_go(node)
            and self._below(node, MEMORY) == len(held)
            and all(map(self._free_to_go, held))
        ):
            for snapshot in held:
                self.evict(snapshot, MEMORY, reason)


def disk_order(state: State) -> Iterable[int]:
    """Return nodes on disk, least recently used first, segments and snapshots together."""
    used: Callable[[int], tuple[int, int]] = lambda n: (state.nodes[n].last_used_us, 0)  # noqa: E731
    return merge(state.lru[DISK, True], state.lru[DISK, False], key=used)
