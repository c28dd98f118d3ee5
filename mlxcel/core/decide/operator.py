"""Decisions at an operator's wish, and under memory pressure: pin, unpin, delete, promote, demote, shrink."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.reasons import OperationReason
from mlxcel.core.room import BOTH, make_room
from mlxcel.core.state import MEMORY, NOT_STORED, STORED, Node, State


def decide_pin(state: State, c: cmd.PinPrefix) -> list[ev.Event]:
    """Hold an entry under a name; what only memory has of it is written too, so that the pin outlives the process."""
    if c.entry not in state.entries:
        return [_refused("pin", OperationReason.UNKNOWN_ENTRY, str(c.entry), c.caller)]
    before = state.pins.get(c.name)
    if before is not None and before.entry == c.entry:
        return []
    pinned = ev.PrefixPinned(c.name, c.entry, c.caller, before.entry if before else 0)
    return [pinned, *_written_first(state, state.path(state.entries[c.entry].node))]


def decide_unpin(state: State, c: cmd.UnpinPrefix) -> list[ev.Event]:
    """Let go of what the name holds."""
    held = state.pins.get(c.name)
    if held is None:
        return [_refused("unpin", OperationReason.UNKNOWN_PIN, c.name, c.caller)]
    return [ev.PrefixUnpinned(c.name, held.entry, c.caller)]


def decide_delete(state: State, c: cmd.DeleteEntries) -> list[ev.Event]:
    """End entries with the pieces that only they use; pieces that a running request leases stay until it ends and age."""
    plan = EvictionPlan(state)
    refused: list[ev.Event] = []
    deleted: list[int] = []
    for entry_id in dict.fromkeys(c.entries):
        if entry_id not in state.entries or plan.is_dead(entry_id):
            refused.append(_refused("delete", OperationReason.UNKNOWN_ENTRY, str(entry_id), c.caller))
        elif state.entries[entry_id].pins:
            refused.append(_refused("delete", OperationReason.PINNED, str(entry_id), c.caller))
        else:
            plan.end_entry(entry_id, "deleted")
            deleted.append(entry_id)
    done = [ev.EntriesDeleted(c.caller, deleted, plan.freed_bytes(MEMORY))] if deleted else []
    return [*plan.events, *done, *refused]


def decide_promote(state: State, c: cmd.PromoteEntry) -> list[ev.Event]:
    """Say what has to be read so that the entry is in memory, and lease it meanwhile."""
    subject = str(c.entry)
    if c.entry not in state.entries:
        return [_refused("promote", OperationReason.UNKNOWN_ENTRY, subject, c.caller)]
    node = state.entries[c.entry].node
    path = state.path(node)
    absent = list(dict.fromkeys(n.blob for n in path if not state.in_memory(n.blob)))
    if not absent:
        return [_refused("promote", OperationReason.IN_MEMORY, subject, c.caller)]
    if not all(state.readable(blob) for blob in absent):
        return [_refused("promote", OperationReason.NOT_READABLE, subject, c.caller)]
    return [ev.PromotionStarted(c.request, c.entry, node, absent, c.caller)]


def decide_demote(state: State, c: cmd.DemoteEntry) -> list[ev.Event]:
    """Take the entry's own pieces out of memory, deepest first, as far as disk holds them; have the others written."""
    subject = str(c.entry)
    if c.entry not in state.entries:
        return [_refused("demote", OperationReason.UNKNOWN_ENTRY, subject, c.caller)]
    if state.entries[c.entry].pins:
        return [_refused("demote", OperationReason.PINNED, subject, c.caller)]
    if state.policy.disk_capacity_bytes <= 0 or state.policy.write_policy == "off":
        return [_refused("demote", OperationReason.NO_DISK, subject, c.caller)]
    plan = EvictionPlan(state)
    path = state.path(state.entries[c.entry].node)
    queued = _written_first(state, path)
    waiting = sum(1 for node in path if node.memory and state.blobs[node.blob].disk_state != STORED)
    for node in reversed(path):
        others = any(plan.in_memory(e) and e != c.entry for e in node.anchored)
        if others or not plan.evictable(node, MEMORY) or state.blobs[node.blob].disk_state != STORED:
            break
        plan.evict(node, MEMORY, "demoted")
    return [*queued, *plan.events, ev.EntryDemoted(c.entry, c.caller, waiting, plan.freed_bytes(MEMORY))]


def decide_shrink(state: State, c: cmd.ShrinkMemory) -> list[ev.Event]:
    """Give up the least useful of memory until it holds no more than `target_bytes`, a bounded number of victims."""
    plan = EvictionPlan(state)
    over = plan.memory_bytes() - c.target_bytes
    if over <= 0:
        return []
    reached = make_room(plan, over, BOTH, "pressure", c.limit)
    more = not reached and plan.victims >= c.limit
    return [*plan.events, ev.MemoryShrunk(c.target_bytes, plan.freed_bytes(MEMORY), plan.memory_bytes(), more)]


def _written_first(state: State, path: list[Node]) -> list[ev.Event]:
    policy = state.policy
    if policy.write_policy == "off":
        return []
    blobs = [state.blobs[blob] for blob in dict.fromkeys(node.blob for node in path)]
    return [
        ev.SpillQueued(blob.id)
        for blob in blobs
        if blob.disk_state == NOT_STORED and blob.memory_refs and blob.nbytes <= policy.disk_capacity_bytes
    ]


def _refused(operation: str, reason: OperationReason, subject: str, caller: str) -> ev.OperationRefused:
    return ev.OperationRefused(operation, reason, subject, caller)
