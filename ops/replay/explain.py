"""Why one request hit, missed or was refused: what was there for it, where that parted ways, what had left before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.match import match_prefix
from mlxcel.core.state import State
from mlxcel.core.tokens import common_tokens, count, cut, to_ids
from ops.replay.source import History
from ops.replay.walk import Moment, moments, open_history

MOST_CANDIDATES = 8
CONTEXT_TOKENS = 6

RULES = {
    "cold_store": "nothing was cached in this namespace yet",
    "no_common_prefix": "no cached sequence begins with the first block of this prompt",
    "too_short": "the known prefix is shorter than min_prefix",
    "no_snapshot": "the tokens were known, but this model's state was captured at no position on them",
    "spill_pending": "the prefix had left memory while its write to disk was still queued",
    "restore_failed": "the disk tier could not give back what it held",
    "prefill_sooner": "by the measured rates, reading it from disk would have taken longer than computing it",
    "expired": "what was known was past its time to live",
    "no_room": "what would have been read from disk did not fit under the memory cap",
    "prefix_too_short": "shorter than min_prefix",
    "oversized": "larger than the whole capacity",
    "disabled": "the cache was off",
    "block_boundary_floor": "cut to whole blocks, it is shorter than min_prefix",
}


class Candidate(msgspec.Struct, frozen=True):
    """A cached sequence at arrival: `common_tokens` agree; then `theirs` and `ours` follow (empty at an end)."""

    entry: int
    session_key: str
    template_sig: str
    tokens: int
    common_tokens: int
    theirs: list[int]
    ours: list[int]
    theirs_text: str = ""
    ours_text: str = ""


class Left(msgspec.Struct, frozen=True):
    """A piece that had left before: it covered [start, stop) of this very prompt."""

    seq: int
    at_us: int
    tier: str
    reason: str
    start: int
    stop: int


class Explanation(msgspec.Struct):
    """Everything about one request. `rule`: the rule that decided, in words."""

    request: str
    seq: int
    at_us: int
    prompt_tokens: int
    reused_tokens: int
    outcome: str
    rule: str
    known_tokens: int
    candidates: list[Candidate]
    left_before: list[Left]
    afterwards: list[str]
    min_prefix_tokens: int
    other_namespaces: list[str]


def explain(path: Path, request: str, text_of: Callable[[list[int]], str] | None = None) -> Explanation | None:
    """Return what can be said about a request; None when the history does not know it. Raises as `History`.

    Reads the history twice: once for the prompt, once to see what of it had been there and left.
    """
    target = _arrival_of(path, request)
    if target is None:
        return None
    tokens, namespace, seq = target
    left: list[Left] = []
    found: Explanation | None = None
    state, rest = open_history(History(path))
    for moment in moments(state, rest):
        if moment.seq < seq:
            left += _leaving(moment, tokens, namespace)
        elif moment.seq == seq:
            found = _at_arrival(moment, tokens, left, text_of)
        elif found is not None and getattr(moment.record.command, "request", "") == request:
            _afterwards(found, moment)
    return found


def _arrival_of(path: Path, request: str) -> tuple[bytes, int, int] | None:
    state, rest = open_history(History(path))
    for moment in moments(state, rest):
        command = moment.record.command
        if getattr(command, "request", "") != request:
            continue
        if isinstance(command, cmd.AdoptPrefix):
            assert isinstance(command.tokens, bytes)
            return command.tokens, command.namespace, moment.seq
        if isinstance(command, cmd.ServeCold):
            return b"", 0, moment.seq
    return None


def _leaving(moment: Moment, tokens: bytes, namespace: int) -> list[Left]:
    """Return pieces of this prompt that left a tier with this record and were in no other."""
    left = []
    for event in moment.record.events:
        if not isinstance(event, ev.PieceEvicted) or event.node not in moment.state.nodes:
            continue
        node = moment.state.nodes[event.node]
        if node.namespace == namespace and cut(tokens, node.start, node.end) == node.label:
            before = moment.state.path_tokens(node.parent)
            if tokens.startswith(before):
                at_us = moment.record.command.at_us
                left.append(Left(moment.seq, at_us, event.tier, event.reason, node.start, node.end))
    return left


def _at_arrival(
    moment: Moment, tokens: bytes, left: list[Left], text_of: Callable[[list[int]], str] | None
) -> Explanation:
    command, state = moment.record.command, moment.state
    outcome, rule, reused, known = _decided(list(moment.record.events), state)
    candidates: list[Candidate] = []
    others: list[str] = []
    if isinstance(command, cmd.AdoptPrefix):
        candidates = _candidates(state, command, tokens, text_of)
        others = _elsewhere(state, command.namespace, tokens)
        known = max(known, match_prefix(state, state.namespaces[command.namespace], tokens).length)
    served = [piece for piece in left if piece.stop > reused and _still_gone(state, command, piece)]
    return Explanation(
        request=getattr(command, "request", ""),
        seq=moment.seq,
        at_us=command.at_us,
        prompt_tokens=count(tokens) or getattr(command, "prompt_tokens", 0),
        reused_tokens=reused,
        outcome=outcome,
        rule=rule,
        known_tokens=known,
        candidates=candidates,
        left_before=served,
        afterwards=[],
        min_prefix_tokens=state.policy.min_prefix_tokens,
        other_namespaces=others,
    )


def _still_gone(state: State, command: cmd.Command, piece: Left) -> bool:
    """True when the piece was not there again at arrival."""
    if not isinstance(command, cmd.AdoptPrefix):
        return False
    assert isinstance(command.tokens, bytes)
    return match_prefix(state, state.namespaces[command.namespace], command.tokens).length < piece.stop


def _decided(events: list[ev.Event], state: State) -> tuple[str, str, int, int]:
    for event in events:
        match event:
            case ev.PrefixAdopted():
                where = f"the longest usable prefix, from {event.source}"
                return "hit", where + (" (same session)" if event.same_session else ""), event.length, event.length
            case ev.PrefixMissed():
                refused = next((e for e in events if isinstance(e, ev.ReuseRefused)), None)
                words = RULES.get(event.reason, event.reason)
                if refused is not None:
                    words += f"; refused: {RULES.get(refused.reason, refused.reason)}"
                return "miss", f"{event.reason}: {words}", 0, event.known_tokens
            case ev.RequestServedCold():
                return "served cold", event.reason, 0, 0
    refused = next((e for e in events if isinstance(e, ev.ReuseRefused)), None)
    if refused is not None:
        return "refused", f"{refused.reason}: {RULES.get(refused.reason, refused.reason)}", 0, 0
    return "nothing decided", "", 0, 0


def _candidates(
    state: State, command: cmd.AdoptPrefix, tokens: bytes, text_of: Callable[[list[int]], str] | None
) -> list[Candidate]:
    """Return the nearest cached sequences of the namespace, longest common prefix first."""
    found = []
    for entry in state.entries.values():
        if entry.namespace != command.namespace:
            continue
        theirs = state.path_tokens(entry.node)
        common = common_tokens(theirs, tokens)
        mine = to_ids(cut(tokens, common, common + CONTEXT_TOKENS))
        other = to_ids(cut(theirs, common, common + CONTEXT_TOKENS))
        found.append((common, entry, count(theirs), other, mine))
    found.sort(key=lambda row: (-row[0], -row[1].id))
    return [
        Candidate(
            entry.id, entry.session_key, entry.template_sig, length, common, other, mine,
            text_of(other) if text_of else "", text_of(mine) if text_of else "",
        )
        for common, entry, length, other, mine in found[:MOST_CANDIDATES]
    ]  # fmt: skip


def _elsewhere(state: State, namespace: int, tokens: bytes) -> list[str]:
    """Say where the same tokens were cached but could not be shared, and for which difference."""
    mine = state.namespaces[namespace]
    said = []
    for other in state.namespaces.values():
        if other.id == namespace:
            continue
        known = match_prefix(state, other, tokens).length
        if known:
            names = [n for n in mine.key.__struct_fields__ if getattr(mine.key, n) != getattr(other.key, n)]
            said.append(f"{known} tokens are known in namespace {other.id}, which differs in {', '.join(names)}")
    return said


def _afterwards(found: Explanation, moment: Moment) -> None:
    for event in moment.record.events:
        match event:
            case ev.RestoreFailed():
                found.afterwards.append(f"restore failed: {event.error}")
                found.reused_tokens = 0
            case ev.ReuseRefused():
                found.afterwards.append(f"refused to {event.stage}: {event.reason} {event.detail}".rstrip())
            case ev.EntryDonated():
                found.afterwards.append(f"entry {event.entry} of {event.length} tokens donated")
            case ev.RequestEnded():
                found.afterwards.append(f"ended: {event.outcome}" + (f" ({event.detail})" if event.detail else ""))


def plain(found: Explanation) -> dict[str, Any]:
    """Return JSON-ready values."""
    values: dict[str, Any] = msgspec.to_builtins(found)
    return values
