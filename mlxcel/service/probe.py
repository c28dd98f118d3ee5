"""What a prompt would find in the cache now, and why not more: the same decision that a request would get, not recorded."""

from itertools import islice
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.refuse import other_numbers
from mlxcel.core.decide.table import decide
from mlxcel.core.match import Match, match_prefix
from mlxcel.core.reasons import MissReason, RefusalReason
from mlxcel.core.state import Namespace, State
from mlxcel.core.tokens import TOKEN_BYTES, common_tokens, count
from mlxcel.ports import CacheScope, ModelFacts
from mlxcel.service.scope import namespace_key

BRANCHES_COMPARED = 256  # newest first: a question stays bounded however many ways a conversation went on


def probe(
    state: State, facts: ModelFacts, scope: CacheScope, tokens: bytes, at_us: int, rates: tuple[float, float]
) -> dict[str, Any]:
    """Return what a request of these tokens would be served with.

    `cached_tokens`: what it would adopt, from `source`; `reason`: why not more, where it is nothing; `refusal`: the guide's
    reason with its lengths; `matched_tokens`: known tokens in whole blocks; `first_differing_position`: the first token that
    is in no stored sequence that shares the ones before (the prompt's length: all are known).
    """
    if facts.reuse == "none":
        refused = ev.ReuseRefused("", "adopt", RefusalReason.MODEL_OWNED_STATE, count(tokens), 0, facts.reuse_refusal)
        return _answer(state, None, None, [refused])
    key = namespace_key(facts, scope, count(tokens), state.policy.block_size)
    command = cmd.AdoptPrefix(
        at_us=at_us, request="probe", namespace=state.by_namespace.get(key.digest(), 0), template_sig=scope.template_sig,
        session_key=scope.session_key, tokens=tokens, prefill_tokens_per_s=rates[0], restore_bytes_per_s=rates[1],
    )  # fmt: skip
    if not command.namespace:
        unopened = Namespace(0, 0, key, key.digest(), facts.name, 0, facts.reuse, facts.fingerprint_parts)
        if not state.policy.active:
            return _answer(state, None, None, [ev.ReuseRefused("", "adopt", RefusalReason.DISABLED, count(tokens))])
        related = other_numbers(state, unopened, command)
        missed = ev.PrefixMissed("", MissReason.COLD_STORE, 0)
        return _answer(state, None, None, [missed, *([related] if related else [])])
    namespace = state.namespaces[command.namespace]
    found = match_prefix(state, namespace, tokens)
    events = decide(state, command)
    return _answer(state, found, _first_differing(state, namespace, found, tokens), events)


def _answer(state: State, found: Match | None, differs: int | None, events: list[ev.Event]) -> dict[str, Any]:
    adopted = next((e for e in events if isinstance(e, ev.PrefixAdopted)), None)
    missed = next((e for e in events if isinstance(e, ev.PrefixMissed)), None)
    refused = next((e for e in events if isinstance(e, ev.ReuseRefused)), None)
    nodes = [*found.path, *([state.nodes[found.partial]] if found.partial else [])] if found else []
    return {
        "cached_tokens": adopted.length if adopted else 0,
        "source": adopted.source if adopted else None,
        "reason": str(missed.reason) if missed else None,
        "refusal": _refusal(refused) if refused else None,
        "matched_tokens": found.length if found else 0,
        "first_differing_position": differs or 0,
        "in_memory": all(state.in_memory(node.blob) for node in nodes),
        "readable": all(state.readable(node.blob) for node in nodes),
    }


def _refusal(e: ev.ReuseRefused) -> dict[str, Any]:
    return {
        "reason": str(e.reason),
        "context_tokens": e.context_tokens,
        "entry_tokens": e.entry_tokens or None,
        "detail": e.detail,
    }


def _first_differing(state: State, namespace: Namespace, found: Match, tokens: bytes) -> int:
    """Compare token by token where whole blocks end: what hangs below the last node, and the rest of a half-matched one."""
    at = found.path[-1] if found.path else state.nodes[namespace.root]
    rest = tokens[at.end * TOKEN_BYTES :]
    below = [
        *islice(reversed((at.children or {}).values()), BRANCHES_COMPARED),
        *islice(reversed((at.snapshots or {}).values()), BRANCHES_COMPARED),
        *([found.partial] if found.partial else []),
    ]
    return at.end + max((common_tokens(state.nodes[node_id].label, rest) for node_id in below), default=0)
