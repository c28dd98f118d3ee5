"""A finding: what costs reuse, how much, by which evidence, and what to do about it."""

from collections.abc import Callable
from typing import Any

import msgspec

from mlxcel.core.tokens import cut, to_ids
from ops.diagnose.align import Pair

TextOf = Callable[[list[int]], str] | None
CONTEXT_TOKENS = 8
MOST_EVIDENCE = 5

ADVICE = {
    "doubled_bos": "Let either the template or the tokenizer write BOS, on every route: send rendered chats without "
    "special tokens being added again.",
    "trailing_whitespace": "Keep the text in one place as one string and strip its end: a space or newline there joins "
    "the next token.",
    "changing_value": "Move the value to the end of the prompt (the last user message), or coarsen it (the date, not "
    "the second).",
    "template_drift": "Use one template, one set of template kwargs and one tool list in one order for all requests that "
    "should share.",
    "session_keys_change": "Send one prompt_cache_key a conversation: routers stick by it, and snapshots of a session "
    "replace each other by it.",
    "under_min_prefix": "Lower --prompt-cache-min-prefix below the shared prefix, or make the shared part longer.",
    "rolling_context": "Cut history in large steps (half of it at once, seldom) instead of a message a turn, or "
    "summarise it, so that the prefix stays for many turns.",
    "history_rewritten": "Send back the answer exactly as it came, with its reasoning if the template keeps it; don't "
    "re-serialise tool calls or trim messages.",
    "media_changes": "Send the same bytes for the same picture (no re-encoding, no new size), or put media after the text "
    "that should be shared.",
    "namespace_changes": "Keep model, adapter, KV precision and tenant the same for requests that should share.",
    "capacity_evicts": "Raise --prompt-cache-capacity-bytes to the figure given, or let the disk tier hold what memory can't.",
    "entries_evict": "Raise --prompt-cache-max-entries to the figure given.",
    "ttl_evicts": "Raise --prompt-cache-ttl to the figure given, or 0 for none: capacity alone then decides.",
    "dilution": "Route by session key or by prefix (a cache-aware balancer), so that a conversation's next turn finds its "
    "own machine.",
}

TITLES = {
    "doubled_bos": "BOS stands twice in some prompts",
    "trailing_whitespace": "a trailing space or newline shifts the next token",
    "changing_value": "a value near the front changes from request to request",
    "template_drift": "template, kwargs or tools drift",
    "session_keys_change": "session keys change within a conversation",
    "under_min_prefix": "shared prefixes are shorter than min_prefix",
    "rolling_context": "rolling context: the oldest messages are cut each turn",
    "history_rewritten": "the client rewrites history",
    "media_changes": "the same text comes with other media",
    "namespace_changes": "the same text is asked of another model, adapter, precision or tenant",
    "capacity_evicts": "capacity evicts what is asked for again",
    "entries_evict": "the limit of entries evicts what is asked for again",
    "ttl_evicts": "time to live ends what is asked for again",
    "dilution": "requests of one conversation go to different machines",
}


class Evidence(msgspec.Struct, frozen=True):
    """One request against an earlier one. `position`: the first token that differs; the tokens and texts around it."""

    request: str
    against: str
    position: int
    ours: list[int] = []
    theirs: list[int] = []
    ours_text: str = ""
    theirs_text: str = ""
    note: str = ""


class Finding(msgspec.Struct, frozen=True):
    """`tokens`: prompt tokens that would have been reused without the cause. `figures`: what the cause's test measured."""

    cause: str
    title: str
    tokens: int
    requests: int
    advice: str
    detail: str = ""
    evidence: list[Evidence] = []
    figures: dict[str, Any] = {}


def finding(
    cause: str, pairs: list[Pair], tokens: int, text_of: TextOf, detail: str = "", figures: dict[str, Any] | None = None
) -> Finding:
    """Make a finding from the pairs that show it; those that lost most are the evidence."""
    worst = sorted(pairs, key=lambda p: -p.lost)[:MOST_EVIDENCE]
    evidence = [evidence_of(pair, text_of) for pair in worst]
    return Finding(cause, TITLES[cause], tokens, len(pairs), ADVICE[cause], detail, evidence, figures or {})


def evidence_of(pair: Pair, text_of: TextOf) -> Evidence:
    """Return the place where the two part, with a little before and after."""
    at = pair.meeting.prefix
    start = max(0, at - 2)
    ours = to_ids(cut(pair.ours.tokens, start, at + CONTEXT_TOKENS))
    theirs = to_ids(cut(pair.theirs.whole, start, at + CONTEXT_TOKENS))
    said = (text_of(ours), text_of(theirs)) if text_of else ("", "")
    return Evidence(pair.ours.name, pair.theirs.name, at, ours, theirs, *said)
