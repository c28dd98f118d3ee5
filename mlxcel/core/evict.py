"""Planning evictions without touching the state: what would leave a tier, in which order, and what dies with it.

The plan keeps an overlay of what it has already taken, so that several victims of one decision see each other. A node with
something resident below it, a lease or a pin is passed over. Who is next in line is another module's business (`room`).
"""

from collections.abc import Iterable

from mlxcel.core import events as ev
from mlxcel.core.deadline import capture_owner
from mlxcel.core.state import DISK, MEMORY, Node, State


class EvictionPlan:
    """Collects `events` for one decision. `protected`: nodes that this decision builds on and that must stay."""

    def __init__(self, state: State, protected: Iterable[int] = ()) -> None:
        self.state = state
        self.protected = set(protected)
        self.events: list[ev.Event] = []
        self.victims = 0
        self.demoted_entries = 0  # entries that the plan takes out of memory
        self._freed: dict[tuple[str, bool], int] = {}
        self._gone: dict[str, set[int]] = {MEMORY: set(), DISK: set()}
        self._removed: set[int] = set()
        self._removed_below: dict[int, int] = {}
        self._fewer: dict[tuple[str, int], int] = {}
        self._refs: dict[tuple[str, int], int] = {}
        self._anchored: dict[int, list[int]] = {}
        self._moved: dict[int, int] = {}
        self._dead: set[int] = set()
        self._demoted: set[int] = set()
        self._queued: set[int] = set()

    # ------------------------------------------------------------------ what the plan would leave

    def freed_bytes(self, tier: str, kinds: Iterable[bool] = (False, True)) -> int:
        """Return what the events so far give back. `kinds`: False for segments, True for snapshots."""
        return sum(self._freed.get((tier, kind), 0) for kind in kinds)

    def memory_bytes(self, kinds: Iterable[bool] = (False, True)) -> int:
        """Return the bytes that memory holds after the plan so far."""
        return sum(self.state.memory_bytes[kind] - self._freed.get((MEMORY, kind), 0) for kind in kinds)

    def holds(self, node: Node, tier: str) -> bool:
        """True when the node is resident in the tier after the plan so far."""
        if tier == DISK and node.id in self._queued:
            return True
        return (node.memory if tier == MEMORY else node.disk) and node.id not in self._gone[tier]

    def _below(self, node: Node, tier: str) -> int:
        have = node.memory_children if tier == MEMORY else node.disk_children
        return have - self._fewer.get((tier, node.id), 0)

    def resident_below(self, node: Node) -> int:
        """Return how many nodes right below are in memory after the plan so far."""
        return self._below(node, MEMORY)

    def free_to_go(self, node: Node) -> bool:
        """True when no lease, pin or this decision itself needs the node."""
        return not (node.leases or node.pinned or node.id in self.protected)

    def evictable(self, node: Node, tier: str) -> bool:
        """True when nothing holds the node in the tier. A node that would vanish must have nothing below in any tier."""
        if not self.free_to_go(node) or not self.holds(node, tier) or self._below(node, tier):
            return False
        other = DISK if tier == MEMORY else MEMORY
        if self.holds(node, other) or not self._below(node, other):
            return True
        return all(self.free_to_go(below) for below in self.subtree(node))

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
        if tier == MEMORY and not final and self.state.policy.writes_on_evict and not self.holds(node, DISK):
            self.write_first(node)
        if not self.holds(node, other):
            for below in self.subtree(node):
                for where in (MEMORY, DISK):
                    if self.holds(below, where):
                        self._leave(below, where, "unreachable")
        self._leave(node, tier, reason)
        self.victims += 1

    def write_first(self, node: Node) -> None:
        """Have a piece written to disk that memory alone holds."""
        self.events.append(ev.SpillQueued(node.blob))
        for holder in self.state.blobs[node.blob].nodes:
            if not self.state.nodes[holder].disk and holder not in self._removed:
                self._queued.add(holder)
                parent = self.state.nodes[holder].parent
                self._fewer[DISK, parent] = self._fewer.get((DISK, parent), 0) - 1

    def supersede(self, node: Node) -> None:
        """Count a snapshot as gone from every tier; the caller emits the event that says so."""
        for tier in (MEMORY, DISK):
            if self.holds(node, tier):
                self._count_out(node, tier)
        self._dead.update(node.anchored)
        self.demoted_entries += sum(self.state.entries[e].resident for e in node.anchored)
        self._remove(node)

    def _leave(self, node: Node, tier: str, reason: str) -> None:
        vanishes = not self.holds(node, DISK if tier == MEMORY else MEMORY)
        self._settle_entries(node, tier, reason, vanishes)
        freed = self._count_out(node, tier)
        self.events.append(ev.PieceEvicted(node.id, tier, reason, node.blob if freed is not None else 0, freed or 0))
        if vanishes:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        self._removed.add(node.id)
        self._removed_below[node.parent] = self._removed_below.get(node.parent, 0) + 1

    def _left_below(self, node: Node) -> int:
        """Return how many nodes right below the plan leaves in the tree, in whatever tier."""
        return len(node.children or ()) + len(node.snapshots or ()) - self._removed_below.get(node.id, 0)

    def _count_out(self, node: Node, tier: str) -> int | None:
        """Book a node's leaving; returns the bytes that go with it when it is its blob's last holder, else None."""
        blob = self.state.blobs[node.blob]
        have = blob.memory_refs if tier == MEMORY else blob.disk_refs
        left = self._refs[tier, blob.id] = self._refs.get((tier, blob.id), have) - 1
        self._gone[tier].add(node.id)
        self._fewer[tier, node.parent] = self._fewer.get((tier, node.parent), 0) + 1
        if left:
            return None
        freed = blob.nbytes if tier == MEMORY else blob.stored_bytes
        self._freed[tier, blob.snapshot] = self._freed.get((tier, blob.snapshot), 0) + freed
        return freed

    # ------------------------------------------------------------------ entries

    def is_dead(self, entry_id: int) -> bool:
        """True when the plan has ended the entry."""
        return entry_id in self._dead

    def in_memory(self, entry_id: int) -> bool:
        """True when the entry counts as resident in memory after the plan so far."""
        gone = entry_id in self._dead or entry_id in self._demoted
        return self.state.entries[entry_id].resident and not gone

    def drop_entry(self, entry_id: int, reason: str) -> None:
        """Take an entry out of memory with the pieces that only it uses (the guide's entry eviction).

        Its pieces stay on disk where they are or will be kept there; without them the entry is gone altogether.
        """
        node, victims = self._node_of(entry_id), self.victims
        if self.holds(node, DISK) or self.state.policy.writes_on_evict:
            self._demote(entry_id, reason)
        else:
            self.kill_entry(entry_id, reason)
        while node.parent and not self.serves_entry(node) and self.evictable(node, MEMORY):
            self.evict(node, MEMORY, reason)
            node = self.state.nodes[node.parent]
        self.victims = victims + 1

    def kill_entry(self, entry_id: int, reason: str) -> None:
        """End an entry in every tier; its pieces are the caller's to evict."""
        self.demoted_entries += self.in_memory(entry_id)
        self._dead.add(entry_id)
        self.events.append(ev.EntryEvicted(entry_id, reason, "all"))
        self.victims += 1

    def end_entry(self, entry_id: int, reason: str) -> None:
        """End an entry in every tier, with the pieces that only it uses and the states captured on the way to it."""
        node = self._node_of(entry_id)
        for captured in self._captures_of(entry_id):
            self._end_branch(captured, reason)
        self.kill_entry(entry_id, reason)
        self._end_branch(node, reason)

    def _end_branch(self, node: Node, reason: str) -> None:
        while node.parent and not self.in_use(node):
            for tier in (DISK, MEMORY):
                if self.evictable(node, tier):
                    self.evict(node, tier, reason, final=True)
            if self.holds(node, MEMORY) or self.holds(node, DISK):
                return
            node = self.state.nodes[node.parent]

    def _captures_of(self, entry_id: int) -> list[Node]:
        entry = self.state.entries[entry_id]
        session = self.state.session_snapshots.get((entry.namespace, entry.session_key), ())
        taken = [self.state.nodes[node_id] for node_id in session if node_id not in self._removed]
        return [node for node in taken if capture_owner(self.state, node) is entry]

    def in_use(self, node: Node) -> bool:
        """True when a living entry ends at the node or anything hangs below it."""
        return self._left_below(node) > 0 or bool(self._entries_at(node))

    def serves_entry(self, node: Node) -> bool:
        """True when an entry that counts as resident ends at the node."""
        return any(self.in_memory(entry_id) for entry_id in self._entries_at(node))

    def _node_of(self, entry_id: int) -> Node:
        return self.state.nodes[self._moved.get(entry_id, self.state.entries[entry_id].node)]

    def _demote(self, entry_id: int, reason: str) -> None:
        if self.in_memory(entry_id):
            self._demoted.add(entry_id)
            self.demoted_entries += 1
            self.events.append(ev.EntryEvicted(entry_id, reason, MEMORY))

    def _entries_at(self, node: Node) -> list[int]:
        return [e for e in self._anchored.get(node.id, node.anchored) if e not in self._dead]

    def _settle_entries(self, node: Node, tier: str, reason: str, vanishes: bool) -> None:
        for entry_id in self._entries_at(node):
            if vanishes:
                parent = self.state.nodes[node.parent]
                if self._is_own(parent, node):
                    self._anchored[parent.id] = [*self._entries_at(parent), entry_id]
                    self._moved[entry_id] = parent.id
                else:
                    self.demoted_entries += self.in_memory(entry_id)
                    self._dead.add(entry_id)
                    self.events.append(ev.EntryEvicted(entry_id, reason, "all" if tier == MEMORY else "disk"))
            elif tier == MEMORY:
                self._demote(entry_id, reason)

    def _is_own(self, parent: Node, leaving: Node) -> bool:
        """True when the parent serves only the entries that end at `leaving`: they may shrink to it."""
        if not parent.parent or self._entries_at(parent) or leaving.snapshot:
            return False
        return self._left_below(parent) == 1
