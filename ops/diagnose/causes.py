"""From differences to causes: each pair of alike requests is put down to one cause, and each cause to one finding."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import median

from mlxcel.core.keys import ANONYMOUS_SESSION, NamespaceKey
from mlxcel.core.tokens import cut, to_ids
from ops.diagnose.align import Pair
from ops.diagnose.asked import Told
from ops.diagnose.findings import Finding, TextOf, finding

FEWEST = 3  # requests that must show a cause
LEAST_SHARE = 0.01  # of all prompt tokens, that a cause must cost
VALUE_TOKENS = 80  # a timestamp, name, UUID or digest is at most so long
DROPPED_TOKENS = 16  # a message that rolls out is at least so long
FRONT_SPREAD = 8  # a changing value stands at one place, give or take


def causes_of(told: Told, pairs: list[Pair], text_of: TextOf) -> list[Finding]:
    """Return findings about what requests are made of, unranked."""
    block = max(16, *(key.block_size for key in told.namespaces.values())) if told.namespaces else 16
    judge = _Judge(told, block, text_of)
    by_cause: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        cause = judge.cause(pair)
        if cause:
            by_cause[cause].append(pair)
    _settle_values(by_cause, text_of)
    found = []
    for cause, members in by_cause.items():
        tokens = sum(judge.cost(cause, pair) for pair in members)
        enough = tokens >= LEAST_SHARE * told.prompt_tokens or cause == "session_keys_change"
        if len(members) >= FEWEST and enough:
            detail, figures = _DETAILS.get(cause, _no_detail)(members, told, text_of)
            found.append(finding(cause, members, tokens, text_of, detail, figures))
    return found


class _Judge:
    def __init__(self, told: Told, block: int, text_of: TextOf) -> None:
        self.told = told
        self.block = block
        self.text_of = text_of

    def cause(self, pair: Pair) -> str:
        """Return the one cause of what this pair lost, or ""."""
        ours, theirs, meeting = pair.ours, pair.theirs, pair.meeting
        if ours.namespace != theirs.namespace:
            return self._other_namespace(pair)
        if not meeting.edited:
            if self._answer_rewritten(pair):
                return "history_rewritten"
            if (
                0 < meeting.prefix < self.told.policy.min_prefix_tokens
                and not ours.reused
                and meeting.prefix * 4 >= ours.length
            ):
                return "under_min_prefix"
            return "session_keys_change" if self._other_session(pair) else ""
        drifted = ours.template_sig != theirs.template_sig
        if max(pair.lost, drifted * self._drift_cost(pair)) < 2 * self.block:
            return ""
        if self._doubled_bos(pair):
            return "doubled_bos"
        if drifted:
            return "template_drift"
        if self._rolled(pair):
            return "rolling_context"
        in_front = meeting.prefix < pair.first_length
        short = max(meeting.ours, meeting.theirs)
        if in_front and short <= 2 and self._only_space(pair):
            return "trailing_whitespace"
        if in_front and short <= VALUE_TOKENS:
            return "changing_value"
        return "history_rewritten" if ours.session == theirs.session or not in_front else ""

    def cost(self, cause: str, pair: Pair) -> int:
        """Return the tokens that the pair would have reused without the cause."""
        if cause == "history_rewritten" and not pair.meeting.edited:
            return len(pair.theirs.whole) // 4 - pair.meeting.prefix
        return self._drift_cost(pair) if cause == "template_drift" else pair.lost

    def _drift_cost(self, pair: Pair) -> int:
        """Parts of a template may come in another order: what counts is all that is alike."""
        return max(0, pair.meeting.alike - pair.ours.reused)

    def _other_namespace(self, pair: Pair) -> str:
        if pair.lost < 2 * self.block:
            return ""
        names = key_differences(self.told.namespaces[pair.ours.namespace], self.told.namespaces[pair.theirs.namespace])
        return "media_changes" if names == ["media_digest"] else "namespace_changes"

    def _answer_rewritten(self, pair: Pair) -> bool:
        """The prompt goes on from the earlier one, but not with the answer that was given."""
        at, theirs = pair.meeting.prefix, pair.theirs
        goes_on = pair.ours.length > theirs.length + len(theirs.answer) // 8
        at_answer = theirs.length - 2 <= at < len(theirs.whole) // 4 - self.block
        return pair.ours.session == theirs.session and goes_on and at_answer

    def _other_session(self, pair: Pair) -> bool:
        ours, theirs = pair.ours, pair.theirs
        answer = len(theirs.answer) // 4
        continues = answer >= 4 and pair.meeting.prefix >= theirs.length + min(answer, 16) - 1
        named = ANONYMOUS_SESSION not in (ours.session, theirs.session)
        return continues and named and ours.session != theirs.session

    def _doubled_bos(self, pair: Pair) -> bool:
        meeting = pair.meeting
        longer = pair.ours.tokens if meeting.ours > meeting.theirs else pair.theirs.tokens
        return meeting.prefix == 1 and abs(meeting.ours - meeting.theirs) == 1 and longer[:4] == longer[4:8]

    def _rolled(self, pair: Pair) -> bool:
        """What stood after the system prompt has gone, and the rest follows as it was, to the earlier prompt's end."""
        meeting = pair.meeting
        dropped = meeting.theirs >= DROPPED_TOKENS and meeting.ours <= 4
        rest = pair.theirs.length - meeting.prefix - meeting.theirs
        return dropped and rest >= DROPPED_TOKENS and meeting.meets >= rest * 0.9

    def _only_space(self, pair: Pair) -> bool:
        """By the text where a tokenizer is at hand, else by the shape: one token more, or one token shifted."""
        meeting = pair.meeting
        if self.text_of is None:
            return abs(meeting.ours - meeting.theirs) == 1
        ours = self.text_of(to_ids(cut(pair.ours.tokens, meeting.prefix, meeting.prefix + meeting.ours)))
        theirs = self.text_of(to_ids(cut(pair.theirs.whole, meeting.prefix, meeting.prefix + meeting.theirs)))
        return "".join(ours.split()) == "".join(theirs.split()) and ours != theirs


def key_differences(one: NamespaceKey, other: NamespaceKey) -> list[str]:
    """Return the names of the fields in which two namespaces differ."""
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]


def _settle_values(by_cause: dict[str, list[Pair]], text_of: TextOf) -> None:
    """A changing value stands at one place and has many values; two variants of one text are a matter of spelling."""
    members = by_cause.get("changing_value", [])
    if not members:
        return
    middle = median(pair.meeting.prefix for pair in members)
    near = [p for p in members if abs(p.meeting.prefix - middle) <= FRONT_SPREAD]
    scattered = [p for p in members if abs(p.meeting.prefix - middle) > FRONT_SPREAD]
    values = Counter(_value(pair) for pair in near)
    by_cause["changing_value"] = near
    if text_of is None and len(values) <= 2 and max(max(p.meeting.ours, p.meeting.theirs) for p in near) <= 2:
        by_cause["trailing_whitespace"] += near
        by_cause["changing_value"] = []
    by_cause["history_rewritten"] += [p for p in scattered if p.ours.session == p.theirs.session]


def _value(pair: Pair) -> bytes:
    return cut(pair.ours.tokens, pair.meeting.prefix, pair.meeting.prefix + pair.meeting.ours)


Detail = tuple[str, dict[str, object]]


def _no_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    return "", {}


def _value_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    at = int(median(pair.meeting.prefix for pair in members))
    values = len({_value(pair) for pair in members})
    kind = "a value"
    if text_of is not None:
        wide = [
            cut(p.ours.tokens, max(0, p.meeting.prefix - 6), p.meeting.prefix + p.meeting.ours + 4) for p in members
        ]
        kind = value_kind([text_of(to_ids(w)) for w in wide])
    return f"{kind} at about token {at}, {values} different in {len(members)} requests", {
        "position": at,
        "values": values,
    }


def value_kind(texts: list[str]) -> str:
    """Guess what a value is from the text around it."""
    kinds = {
        "a time or date": r"\d{1,2}:\d{2}|\d{4}-\d{2}|\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)",
        "a request or session id": r"[0-9a-fA-F]{8,}|[0-9a-f]{4}-[0-9a-f]{4}|\bid\b",
    }
    for kind, pattern in kinds.items():
        if sum(bool(re.search(pattern, text)) for text in texts) * 2 > len(texts):
            return kind
    return "a name or another value"


def _template_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    signatures = Counter(sig for pair in members for sig in (pair.ours.template_sig, pair.theirs.template_sig))
    at = int(median(pair.meeting.prefix for pair in members))
    guess = ""
    if text_of is not None:
        around = [
            text_of(to_ids(cut(p.ours.tokens, max(0, p.meeting.prefix - 60), p.meeting.prefix + 60))) for p in members
        ]
        tools = sum('"function"' in text or '"parameters"' in text or "<tools>" in text for text in around)
        guess = ", in the tool schemas" if tools * 2 > len(members) else ", in the template or its kwargs"
    detail = f"{len(signatures)} template signatures; prompts part at about token {at}{guess}"
    return detail, {"signatures": dict(signatures.most_common(8)), "position": at}


def _rolling_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    overlaps = [pair.meeting.prefix / pair.ours.length for pair in members]
    system = median(pair.meeting.prefix for pair in members) / median(pair.ours.length for pair in members)
    detail = f"overlap with the turn before falls to {min(overlaps):.0%}; system length over total is {system:.0%}"
    return detail, {"overlap_per_turn": [round(o, 3) for o in overlaps[:50]], "system_share": round(system, 3)}


def _namespace_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    names: Counter[str] = Counter()
    for pair in members:
        keys = told.namespaces[pair.ours.namespace], told.namespaces[pair.theirs.namespace]
        names.update(key_differences(*keys))
    return "they differ in " + ", ".join(names), {"fields": dict(names)}


def _short_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    longest = max(pair.meeting.prefix for pair in members)
    limit = told.policy.min_prefix_tokens
    return f"min_prefix is {limit}, shared prefixes are up to {longest} tokens", {
        "min_prefix": limit,
        "longest": longest,
    }


def _session_detail(members: list[Pair], told: Told, text_of: TextOf) -> Detail:
    keys = {pair.ours.session for pair in members} | {pair.theirs.session for pair in members}
    detail = f"{len(members)} turns go on under another key than the turn before; {len(keys)} keys"
    return detail + ". This server shares KV across keys, so reuse here need not suffer", {"keys": len(keys)}


_DETAILS: dict[str, Callable[[list[Pair], Told, TextOf], Detail]] = {
    "changing_value": _value_detail,
    "template_drift": _template_detail,
    "rolling_context": _rolling_detail,
    "media_changes": _namespace_detail,
    "namespace_changes": _namespace_detail,
    "under_min_prefix": _short_detail,
    "session_keys_change": _session_detail,
}
