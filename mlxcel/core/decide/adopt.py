"""How much of an arriving prompt need not be computed."""

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.match import Match, match_prefix
from mlxcel.core.reasons import MissReason, RefusalReason
from mlxcel.core.state import Namespace, Node, State
from mlxcel.core.tokens import TOKEN_BYTES, count


class Candidate(msgspec.Struct):
    """A prefix that could be adopted: `nodes` in order (a snapshot last, if any), `length` tokens, `known` tokens in all."""

    nodes: list[Node]
    length: int
    known: int
    reason: MissReason = MissReason.NO_COMMON_PREFIX


def decide_adopt(state: State, c: cmd.AdoptPrefix) -> list[ev.Event]:
    """Adopt the longest usable prefix, or say why there is none. The request's tokens are known from here on."""
    assert isinstance(c.tokens, bytes), "tokens are expanded before a decision"
    namespace = state.namespaces[c.namespace]
    arrived = ev.RequestArrived(c.request, c.namespace, c.template_sig, c.session_key, c.tokens, c.store, c.ttl_us)
    policy = state.policy
    total = count(c.tokens)
    if not policy.active:
        return [arrived, ev.ReuseRefused(c.request, "adopt", RefusalReason.DISABLED, total)]
    if not c.read:
        return [arrived, ev.RequestServedCold(c.request, "no_read", total)]
    found = match_prefix(state, namespace, c.tokens)
    if namespace.reuse == "snapshot":
        best = _best_snapshot(state, namespace, found, c.tokens, total - 1)
    elif policy.apc_enabled:
        best = _best_blocks(state, namespace, found, total - 1)
    else:
        best = _best_whole_entry(state, found, total - 1)
    best = _only_if_sooner(state, namespace, best, c)
    if best.length >= policy.min_prefix_tokens and best.nodes:
        return [arrived, _adopted(state, namespace, c, best)]
    capped = found.length >= policy.min_prefix_tokens > total - 1
    if capped:
        return [
            arrived,
            ev.ReuseRefused(c.request, "adopt", RefusalReason.PREFIX_TOO_SHORT, total - 1, found.length),
            ev.PrefixMissed(c.request, MissReason.TOO_SHORT, best.known),
        ]
    return [arrived, ev.PrefixMissed(c.request, _miss_reason(state, namespace, best), best.known)]


def _miss_reason(state: State, namespace: Namespace, best: Candidate) -> MissReason:
    root = state.nodes[namespace.root]
    if not root.children and not root.snapshots:
        return MissReason.COLD_STORE
    if best.length and best.reason is MissReason.NO_COMMON_PREFIX:
        return MissReason.TOO_SHORT
    return best.reason


def _readable_run(state: State, found: Match) -> tuple[list[Node], int, bool]:
    """Return the leading nodes whose bytes some tier can give, the tokens they cover, and whether it stopped early."""
    nodes: list[Node] = []
    length = 0
    for node in found.path:
        if not state.readable(node.blob):
            return nodes, length, True
        nodes.append(node)
        length = node.end
    if found.partial:
        node = state.nodes[found.partial]
        if not state.readable(node.blob):
            return nodes, length, True
        nodes.append(node)
        length += found.partial_tokens
    return nodes, length, False


def _best_blocks(state: State, namespace: Namespace, found: Match, limit: int) -> Candidate:
    nodes, length, stopped = _readable_run(state, found)
    usable = min(length, limit // namespace.block_size * namespace.block_size)
    nodes = [node for node in nodes if node.start < usable]
    reason = MissReason.SPILL_PENDING if stopped else MissReason.NO_COMMON_PREFIX
    return Candidate(nodes, usable, found.length, reason)


def _best_whole_entry(state: State, found: Match, limit: int) -> Candidate:
    """Without block matching only an entry that is a prefix of the prompt, whole, may be adopted."""
    nodes, _, stopped = _readable_run(state, found)
    for at in range(len(nodes) - 1, -1, -1):
        if nodes[at].anchored and nodes[at] in found.path:
            return Candidate(nodes[: at + 1], min(nodes[at].end, limit), found.length)
    reason = MissReason.SPILL_PENDING if stopped else MissReason.NO_COMMON_PREFIX
    return Candidate([], 0, found.length, reason)


def _best_snapshot(state: State, namespace: Namespace, found: Match, tokens: bytes, limit: int) -> Candidate:
    """A captured state is usable exactly where it was taken: the longest that lies on the prompt, one token short of all."""
    nodes, _, stopped = _readable_run(state, found)
    whole = [node for node in nodes if node.id != found.partial]
    known = found.length
    for depth in range(len(whole), -1, -1):
        at = whole[depth - 1] if depth else state.nodes[namespace.root]
        usable = []
        for tail, node_id in (at.snapshots or {}).items():
            end = at.end + len(tail) // TOKEN_BYTES
            if end <= limit and tokens[at.end * TOKEN_BYTES : end * TOKEN_BYTES] == tail:
                node = state.nodes[node_id]
                if state.readable(node.blob):
                    usable.append(node)
        if usable:
            best = max(usable, key=lambda node: (node.end, node.id))
            return Candidate([*whole[:depth], best], best.end, max(known, best.end))
    reason = MissReason.SPILL_PENDING if stopped else MissReason.NO_SNAPSHOT
    return Candidate([], 0, known, reason if known else MissReason.NO_COMMON_PREFIX)


def awaited_snapshots(state: State, waiting: list[tuple[int, bytes]]) -> list[int]:
    """Return the snapshots that waiting (namespace, prompt) requests would adopt: a donation must not supersede them."""
    found: set[int] = set()
    for namespace_id, tokens in waiting:
        namespace = state.namespaces[namespace_id]
        match = match_prefix(state, namespace, tokens)
        best = _best_snapshot(state, namespace, match, tokens, count(tokens) - 1)
        if best.nodes:
            found.add(best.nodes[-1].id)
    return sorted(found)


def _only_if_sooner(state: State, namespace: Namespace, best: Candidate, c: cmd.AdoptPrefix) -> Candidate:
    """Give up what would take longer to read from disk than to compute, by the rates the service measured."""
    if c.prefill_tokens_per_s <= 0 or c.restore_bytes_per_s <= 0:
        return best
    in_memory = 0
    while in_memory < len(best.nodes) and state.in_memory(best.nodes[in_memory].blob):
        in_memory += 1
    rest = best.nodes[in_memory:]
    if not rest:
        return best
    blobs = {node.blob for node in rest if not state.in_memory(node.blob)}
    restore_s = sum(state.blobs[blob].nbytes for blob in blobs) / c.restore_bytes_per_s
    have = best.nodes[in_memory - 1].end if in_memory else 0
    if restore_s <= (best.length - have) / c.prefill_tokens_per_s:
        return best
    if namespace.reuse == "snapshot":
        return Candidate([], 0, best.known, MissReason.PREFILL_SOONER)
    return Candidate(best.nodes[:in_memory], have, best.known, MissReason.PREFILL_SOONER)


def _adopted(state: State, namespace: Namespace, c: cmd.AdoptPrefix, best: Candidate) -> ev.PrefixAdopted:
    restore = list(dict.fromkeys(node.blob for node in best.nodes if not state.in_memory(node.blob)))
    entry, same_session = _credited(state, namespace, best.nodes[-1], c.session_key)
    source = "disk" if restore else ("snapshot" if namespace.reuse == "snapshot" else "memory")
    return ev.PrefixAdopted(c.request, best.nodes[-1].id, best.length, source, restore, entry, same_session)


def _credited(state: State, namespace: Namespace, node: Node, session_key: str) -> tuple[int, bool]:
    """Name the entry a hit is due to: the session's latest if it runs through the node, else the last that did."""
    latest = state.latest_in_session.get((namespace.id, session_key), 0)
    if latest:
        at = state.nodes[state.entries[latest].node]
        while at.parent and at.end > node.end:
            at = state.nodes[at.parent]
        if at.id == node.id:
            return latest, True
    anchored = node.anchored[-1] if node.anchored else 0
    entry = node.via if node.via in state.entries else anchored
    return entry, bool(entry) and state.entries[entry].session_key == session_key
