"""How much of an arriving prompt need not be computed."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.deadline import overdue
from mlxcel.core.decide.candidates import Candidate, best_candidate, best_snapshot
from mlxcel.core.decide.refuse import refusal
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.match import match_prefix
from mlxcel.core.reasons import MissReason, RefusalReason
from mlxcel.core.room import BOTH, limit_entries, make_room
from mlxcel.core.state import Namespace, Node, State
from mlxcel.core.tokens import count


def decide_adopt(state: State, c: cmd.AdoptPrefix) -> list[ev.Event]:
    """Adopt the longest usable prefix, or say why there is none. The request's tokens are known from here on.

    Nothing of this depends on the request being tracked already, so the same command also answers "what if".
    """
    assert isinstance(c.tokens, bytes), "tokens are expanded before a decision"
    namespace = state.namespaces[c.namespace]
    arrived = ev.RequestArrived(
        c.request, c.namespace, c.template_sig, c.session_key, c.tokens, c.store, c.ttl_us, c.background
    )
    policy = state.policy
    total = count(c.tokens)
    if not policy.active:
        return [arrived, ev.ReuseRefused(c.request, "adopt", RefusalReason.DISABLED, total)]
    if not c.read:
        return [arrived, ev.RequestServedCold(c.request, "no_read", total)]
    found = match_prefix(state, namespace, c.tokens)
    best = best_candidate(state, namespace, found, c)
    best = _only_if_sooner(state, namespace, best, c)
    best, plan = _only_if_it_fits(state, namespace, best, c)
    if best.length >= policy.min_prefix_tokens and best.nodes:
        adopted = _adopted(state, namespace, c, best, plan)
        return [arrived, *plan.events, adopted]
    missed = ev.PrefixMissed(c.request, _miss_reason(state, namespace, best), best.known)
    refused = None if c.background else refusal(state, namespace, found, best, c)
    return [arrived, *plan.events, *([refused] if refused else []), missed]


def _miss_reason(state: State, namespace: Namespace, best: Candidate) -> MissReason:
    root = state.nodes[namespace.root]
    if not root.children and not root.snapshots:
        return MissReason.COLD_STORE
    if best.length and best.reason is MissReason.NO_COMMON_PREFIX:
        return MissReason.TOO_SHORT
    return best.reason


def awaited_snapshots(state: State, waiting: list[tuple[int, bytes]]) -> list[int]:
    """Return the snapshots that waiting (namespace, prompt) requests would adopt: a donation must not supersede them."""
    found: set[int] = set()
    for namespace_id, tokens in waiting:
        namespace = state.namespaces[namespace_id]
        best = best_snapshot(state, namespace, match_prefix(state, namespace, tokens), tokens, state.now_us)
        if best.nodes:
            found.add(best.nodes[-1].id)
    return sorted(found)


def _in_memory(state: State, nodes: list[Node]) -> int:
    """Return how many leading nodes are in memory."""
    for at, node in enumerate(nodes):
        if not state.in_memory(node.blob):
            return at
    return len(nodes)


def _restore_bytes(state: State, nodes: list[Node]) -> int:
    blobs = {node.blob for node in nodes}
    return sum(state.blobs[blob].nbytes for blob in blobs if not state.in_memory(blob))


def _shortened(state: State, namespace: Namespace, best: Candidate, reason: MissReason) -> Candidate:
    """Give up what would have to be read from disk. A snapshot is all or nothing."""
    at = _in_memory(state, best.nodes)
    if namespace.reuse == "snapshot" or not at:
        return Candidate([], 0, best.known, reason)
    return Candidate(best.nodes[:at], best.nodes[at - 1].end, best.known, reason)


def _only_if_sooner(state: State, namespace: Namespace, best: Candidate, c: cmd.AdoptPrefix) -> Candidate:
    """Give up what would take longer to read from disk than to compute, by the rates the service measured."""
    if c.prefill_tokens_per_s <= 0 or c.restore_bytes_per_s <= 0:
        return best
    at = _in_memory(state, best.nodes)
    if at == len(best.nodes):
        return best
    restore_s = _restore_bytes(state, best.nodes[at:]) / c.restore_bytes_per_s
    have = best.nodes[at - 1].end if at else 0
    if restore_s <= (best.length - have) / c.prefill_tokens_per_s:
        return best
    return _shortened(state, namespace, best, MissReason.PREFILL_SOONER)


def _only_if_it_fits(
    state: State, namespace: Namespace, best: Candidate, c: cmd.AdoptPrefix
) -> tuple[Candidate, EvictionPlan]:
    """Make room under the memory cap for live KV and what is read from disk; without room for the latter, go without."""
    plan = EvictionPlan(state, (node.id for node in best.nodes))
    cap = state.policy.memory_cap_bytes
    if cap:
        reads = _restore_bytes(state, best.nodes)
        if not make_room(plan, plan.memory_bytes() + reads + c.live_bytes - cap, BOTH) and reads:
            best = _shortened(state, namespace, best, MissReason.NO_ROOM)
    return best, plan


def _adopted(
    state: State, namespace: Namespace, c: cmd.AdoptPrefix, best: Candidate, plan: EvictionPlan
) -> ev.PrefixAdopted:
    last = best.nodes[-1]
    restore = list(dict.fromkeys(node.blob for node in best.nodes if not state.in_memory(node.blob)))
    entry = best.entry or _credited(state, namespace, last, c)
    entry = 0 if plan.is_dead(entry) else entry
    if entry and not state.entries[entry].resident and state.nodes[state.entries[entry].node].memory:
        limit_entries(plan, 0)  # its pieces never left, so the hit brings the entry itself back
    same_session = bool(entry) and state.entries[entry].session_key == c.session_key
    source = "disk" if restore else ("snapshot" if namespace.reuse == "snapshot" else "memory")
    return ev.PrefixAdopted(c.request, last.id, best.length, source, restore, entry, same_session)


def _credited(state: State, namespace: Namespace, node: Node, c: cmd.AdoptPrefix) -> int:
    """Name the entry a hit is due to: the session's latest if it runs through the node, else the last that did.

    One past its own time to live is not, lest the hit brings it back.
    """
    latest = state.latest_in_session.get((namespace.id, c.session_key), 0)
    if latest and not overdue(state.entries[latest], c.at_us):
        at = state.nodes[state.entries[latest].node]
        while at.parent and at.end > node.end:
            at = state.nodes[at.parent]
        if at.id == node.id:
            return latest
    if node.via in state.entries and not overdue(state.entries[node.via], c.at_us):
        return node.via
    living = [entry_id for entry_id in node.anchored if not overdue(state.entries[entry_id], c.at_us)]
    return living[-1] if living else 0
