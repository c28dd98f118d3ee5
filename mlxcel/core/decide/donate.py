"""What of a running or finished request is kept."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.snapshot import keep_snapshot
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.extend import plan_extension
from mlxcel.core.keys import entry_digest
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.room import limit_entries
from mlxcel.core.state import MEMORY, Namespace, Request, State
from mlxcel.core.tokens import TOKEN_BYTES, count, cut


def decide_seal(state: State, c: cmd.SealPrefix) -> list[ev.Event]:
    """Keep whole blocks that prefill has filled so far, so that others can share them before the request ends."""
    request = state.requests[c.request]
    namespace = state.namespaces[request.namespace]
    length = c.length // namespace.block_size * namespace.block_size
    if not (state.policy.active and request.store) or length <= request.kept or not namespace.kv_bytes_per_token:
        return []
    if length * namespace.kv_bytes_per_token > state.policy.capacity_bytes:
        return []
    grown = plan_extension(state, request, request.tokens, length, EvictionPlan(state), c.live_bytes)
    if grown.length <= request.kept:
        return []
    return [*grown.events, ev.PrefixSealed(c.request, grown.node, grown.length)]


def decide_donate(state: State, c: cmd.DonatePrefix) -> list[ev.Event]:
    """Keep a healthy request's whole sequence as an entry, and end the request."""
    request = state.requests[c.request]
    events: list[ev.Event] = [ev.TokensGenerated(c.request, c.generated)]
    tokens = cut(request.tokens + c.generated, 0, c.length)
    assert count(tokens) == c.length, "a cache covers no more tokens than the request has"
    events += _donation(state, request, tokens, c)
    return [*events, ev.RequestEnded(c.request, "donated", "")]


def _donation(state: State, request: Request, tokens: bytes, c: cmd.DonatePrefix) -> list[ev.Event]:
    namespace = state.namespaces[request.namespace]
    policy = state.policy
    if not policy.active:
        return [_refused(request, RefusalReason.DISABLED, c.length)]
    if c.length <= 0:
        return [_refused(request, RefusalReason.EMPTY_SET, c.length)]
    if c.length < policy.min_prefix_tokens:
        return [_refused(request, RefusalReason.PREFIX_TOO_SHORT, c.length)]
    if c.regime_crossed:
        return [_refused(request, RefusalReason.ROPE_REGIME_MISMATCH, c.length, "generation crossed the RoPE boundary")]
    digest = _digest(namespace, request, tokens)
    replaced = state.by_digest.get((request.namespace, digest), 0)
    if namespace.reuse == "snapshot":
        node, events = keep_snapshot(state, request, tokens, c, c.state_nbytes, "completion", replaced)
        if not node:
            return events
        length = c.length
    else:
        length = c.length // namespace.block_size * namespace.block_size
        nbytes = length * namespace.kv_bytes_per_token
        if nbytes > policy.capacity_bytes:
            detail = f"entry of {nbytes} bytes, capacity {policy.capacity_bytes} bytes"
            return [_refused(request, RefusalReason.OVERSIZED, c.length, detail=detail)]
        if length < policy.min_prefix_tokens:
            return [_refused(request, RefusalReason.BLOCK_BOUNDARY_FLOOR, c.length)]
        grown = plan_extension(state, request, tokens, length, EvictionPlan(state), c.live_bytes, entry=replaced)
        events, node, length = list(grown.events), grown.node, grown.length
        if length < policy.min_prefix_tokens or not grown.fits:
            return [_refused(request, RefusalReason.OVERSIZED, c.length, detail="all room is leased or pinned")]
        events.append(ev.PrefixSealed(request.id, node, length))
    return [*events, _donated(state, request, digest, node, length, events)]


def _digest(namespace: Namespace, request: Request, tokens: bytes) -> bytes:
    return entry_digest(
        namespace.model_id, namespace.key.lora_id, request.template_sig, request.session_key,
        namespace.key.rope_regime, namespace.key.media_digest, tokens,
    )  # fmt: skip


def _donated(
    state: State, request: Request, digest: bytes, node: int, length: int, before: list[ev.Event]
) -> ev.EntryDonated:
    """File the entry; it takes over from one of equal digest, unless that has just gone."""
    replaced = state.by_digest.get((request.namespace, digest), 0)
    if any(isinstance(e, ev.EntryEvicted) and e.entry == replaced and e.tier != MEMORY for e in before):
        replaced = 0
    return ev.EntryDonated(request.id, state.next_entry, digest, node, length, replaced, "completion")


def decide_end(state: State, c: cmd.EndRequest) -> list[ev.Event]:
    """End a request that donates nothing whole; a cancelled one may leave its sealed segments as an entry."""
    request = state.requests[c.request]
    events: list[ev.Event] = []
    policy = state.policy
    keep = c.outcome == "cancelled" and policy.donate_cancelled and request.store and policy.active
    namespace = state.namespaces[request.namespace]
    if (
        keep
        and namespace.reuse == "prefix"
        and request.kept > request.adopted
        and request.kept >= policy.min_prefix_tokens
    ):
        digest = _digest(namespace, request, request.tokens[: request.kept * TOKEN_BYTES])
        plan = EvictionPlan(state, (node.id for node in state.path(request.node)))
        if limit_entries(plan, state.by_digest.get((request.namespace, digest), 0)):
            events += plan.events
            events.append(_donated(state, request, digest, request.node, request.kept, events))
    return [*events, ev.RequestEnded(c.request, c.outcome, c.detail)]


def _refused(request: Request, reason: RefusalReason, tokens: int, detail: str = "") -> ev.ReuseRefused:
    return ev.ReuseRefused(request.id, "donate", reason, tokens, 0, detail)
