"""Why a prompt that the cache half knows is not served from it, by the guide's names."""

from heapq import nlargest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.candidates import Candidate, snapshots_on, whole_entries_only
from mlxcel.core.match import Match, match_prefix
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.state import Namespace, Node, State
from mlxcel.core.tokens import common_tokens, count

SNAPSHOTS_COMPARED = 16  # of a session, newest first: a decision stays bounded however many there are


def refusal(
    state: State, namespace: Namespace, found: Match, best: Candidate, c: cmd.AdoptPrefix
) -> ev.ReuseRefused | None:
    """Return the refusal that stands beside a miss, or None: a cold store and another session's entries are no refusal."""
    assert isinstance(c.tokens, bytes)
    floor, limit = state.policy.min_prefix_tokens, count(c.tokens) - 1
    if namespace.reuse == "snapshot":
        refused = _whole_prompt(state, namespace, found, c) or _diverged(state, namespace, c)
    elif found.length >= floor > limit:
        refused = ev.ReuseRefused(c.request, "adopt", RefusalReason.PREFIX_TOO_SHORT, limit, found.length)
    elif found.length >= floor and whole_entries_only(namespace):
        detail = "with media only a whole entry may be adopted"
        refused = ev.ReuseRefused(c.request, "adopt", RefusalReason.MODE_MISMATCH, found.length, 0, detail)
    elif found.length >= floor > best.length > 0:
        refused = ev.ReuseRefused(c.request, "adopt", RefusalReason.BLOCK_BOUNDARY_FLOOR, limit, found.length)
    else:
        refused = None
    return refused or (other_numbers(state, namespace, c) if found.length < floor else None)


def _whole_prompt(state: State, namespace: Namespace, found: Match, c: cmd.AdoptPrefix) -> ev.ReuseRefused | None:
    """A snapshot that ends where the prompt ends leaves no token to compute, and can't be cut."""
    assert isinstance(c.tokens, bytes)
    total = count(c.tokens)
    for at in (state.nodes[namespace.root], *found.path[-2:]):
        if any(node.end == total for node in snapshots_on(state, at, c.tokens)):
            detail = "the snapshot covers the whole prompt and can't be cut one token short"
            return ev.ReuseRefused(c.request, "adopt", RefusalReason.LAYOUT_CONSTRAINTS, total, total, detail)
    return None


def _diverged(state: State, namespace: Namespace, c: cmd.AdoptPrefix) -> ev.ReuseRefused | None:
    """The session's snapshot that shares most with the prompt, if none is a prefix of it."""
    assert isinstance(c.tokens, bytes)
    mine = state.session_snapshots.get((namespace.id, c.session_key), ())
    best: tuple[int, int, int, Node] | None = None
    for node_id in nlargest(SNAPSHOTS_COMPARED, mine):
        node = state.nodes[node_id]
        common = common_tokens(state.path_tokens(node_id), c.tokens)
        if common < node.end and state.readable(node.blob):
            best = max(best or (-1, 0, 0, node), (common, node.last_used_us, node.id, node))
    if best is None:
        return None
    common, _, _, node = best
    if common == count(c.tokens):
        detail = f"the prompt ends at token {common}, inside the snapshot"
    else:
        detail = f"the first token that differs is number {common}"
    return ev.ReuseRefused(c.request, "adopt", RefusalReason.SNAPSHOT_DIVERGED, common, node.end, detail)


def other_numbers(state: State, namespace: Namespace, c: cmd.AdoptPrefix) -> ev.ReuseRefused | None:
    """The same text may be known with KV of another precision, or under the other RoPE table."""
    assert isinstance(c.tokens, bytes)
    for other_id in state.related.get(namespace.key.relatives(namespace.fingerprint_parts), ()):
        other = state.namespaces[other_id]
        if (other.key.kv_mode, other.key.rope_regime) == (namespace.key.kv_mode, namespace.key.rope_regime):
            continue
        known = match_prefix(state, other, c.tokens).length
        if known >= state.policy.min_prefix_tokens:
            if other.key.kv_mode != namespace.key.kv_mode:
                reason, detail = RefusalReason.KV_MODE_MISMATCH, f"stored as {other.key.kv_mode}"
            else:
                reason, detail = RefusalReason.ROPE_REGIME_MISMATCH, "stored under the other RoPE table"
            return ev.ReuseRefused(c.request, "adopt", reason, count(c.tokens), known, detail)
    return None
