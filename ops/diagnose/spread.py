"""What many machines would make of these requests, and the three conditions under which a prefix cache pays.

Dilution: under random routing over N machines the next turn of a conversation finds its own machine with probability 1/N,
so of a conversation's own history only 1/N is reused; a prefix that all share costs one miss a machine and then hits. The
often-quoted "bound" p x (1 - 1/N) grows with N: it can't be a bound on dilution.
"""

import random
from typing import Any

import msgspec

from mlxcel.core.keys import ANONYMOUS_SESSION
from mlxcel.core.tokens import common_tokens
from ops.diagnose.align import Pair
from ops.diagnose.asked import Asked, Told
from ops.diagnose.findings import ADVICE, TITLES, Finding

LEAST_SYSTEM_SHARE = 0.3
FEWEST_TURNS = 2.0
BLOCK_TOKENS = 16
_SEED = 20_260_905


class Spread(msgspec.Struct, frozen=True):
    """Share of prompt tokens reused by N machines with room for all: under random routing, and by session."""

    machines: int
    random_rate: float
    sticky_rate: float
    quoted_bound: float


def spread_over(told: Told, machines: list[int], share_of_same: float) -> list[Spread]:
    """Serve the requests by N unlimited caches each; seeded, so that the same log gives the same figures."""
    total = max(1, told.prompt_tokens)
    found = []
    for n in machines:
        rng = random.Random(_SEED)
        by_chance = _reused(told.asked, [rng.randrange(n) for _ in told.asked])
        homes: dict[str, int] = {}
        sticky = [homes.setdefault(one.session, len(homes)) % n for one in told.asked]
        found.append(Spread(n, by_chance / total, _reused(told.asked, sticky) / total, share_of_same * (1 - 1 / n)))
    return found


def _reused(asked: list[Asked], machine: list[int]) -> int:
    """Return tokens reused when each machine keeps every whole block that it has seen, prompt and answer."""
    seen: set[tuple[int, int]] = set()
    chain: dict[tuple[int, bytes], int] = {}
    step = BLOCK_TOKENS * 4
    reused = 0
    for one, at_machine in zip(asked, machine, strict=True):
        node, fresh = -1 - one.namespace, False
        whole = one.whole
        for at in range(0, len(whole) - step + 1, step):
            node = chain.setdefault((node, whole[at : at + step]), len(chain))
            fresh = fresh or (at_machine, node) not in seen
            if not fresh and at + step < len(one.tokens):
                reused += BLOCK_TOKENS
            seen.add((at_machine, node))
    return reused


def dilution(told: Told, spread: list[Spread], instances: int) -> Finding | None:
    """Return what spreading over `instances` machines costs, against one machine or routing by session."""
    here = next((s for s in spread if s.machines == instances), None)
    if here is None or instances < 2:
        return None
    lost = round((max(s.random_rate for s in spread if s.machines == 1) - here.random_rate) * told.prompt_tokens)
    if lost < 0.01 * told.prompt_tokens:
        return None
    detail = (
        f"with {instances} machines and random routing {here.random_rate:.0%} of prompt tokens are reused, by session "
        f"{here.sticky_rate:.0%}; a next turn finds its own machine with probability 1/{instances}. The quoted "
        f"p x (1 - 1/N) would be {here.quoted_bound:.0%}; it grows with N, so it is no bound on dilution"
    )
    return Finding("dilution", TITLES["dilution"], lost, len(told.asked), ADVICE["dilution"], detail, [],
                   {"instances": instances})  # fmt: skip


class Condition(msgspec.Struct, frozen=True):
    """One of the three conditions: its figure, and whether a prefix cache pays by it; None where the log can't tell."""

    name: str
    value: float | None
    wanted: str
    holds: bool | None


def conditions(told: Told, pairs: list[Pair]) -> list[Condition]:
    """Return the system prompt's share of the input, the share of requests with the same one, and turns a session."""
    firsts = _first_prompts(told, pairs)
    system, same = _system_lengths(firsts)
    if len(firsts) < 2:
        system = _parted(pairs)
    turns = _turns(told, len(firsts))
    mean_input = told.prompt_tokens / max(1, len(told.asked))
    share = sum(system) / len(system) / mean_input if system and mean_input else None
    return [
        Condition("system prompt's share of the input", None if share is None else round(share, 3),
                  f"at least {LEAST_SYSTEM_SHARE}", None if share is None else share >= LEAST_SYSTEM_SHARE),
        Condition("share of requests with the same system prompt", round(same, 3), "high; the more machines, the higher",
                  same >= 0.5),
        Condition("turns a session", round(turns, 2), f"more than {FEWEST_TURNS:.0f}", turns > FEWEST_TURNS),
    ]  # fmt: skip


def _first_prompts(told: Told, pairs: list[Pair]) -> list[Asked]:
    """Return the requests that begin a conversation: they don't go on from an earlier one."""
    going_on = {
        id(p.ours) for p in pairs if p.meeting.prefix >= p.theirs.length - 2 or (
            p.ours.session == p.theirs.session != ANONYMOUS_SESSION)
    }  # fmt: skip
    return [one for one in told.asked if id(one) not in going_on]


def _system_lengths(firsts: list[Asked]) -> tuple[list[int], float]:
    """Return for each conversation how much of its start others share, and the largest group's share.

    In sorted order the longest common prefix with any other is with a neighbour.
    """
    ordered = sorted(firsts, key=lambda one: (one.namespace, one.tokens))
    if not ordered:
        return [], 0.0
    shared = [0] * len(ordered)
    group, largest = 1, 1
    for at in range(1, len(ordered)):
        same = ordered[at].namespace == ordered[at - 1].namespace
        common = common_tokens(ordered[at - 1].tokens, ordered[at].tokens) if same else 0
        shared[at - 1], shared[at] = max(shared[at - 1], common), max(shared[at], common)
        group = group + 1 if common >= BLOCK_TOKENS else 1
        largest = max(largest, group)
    return shared, largest / len(ordered)


def _parted(pairs: list[Pair]) -> list[int]:
    """Return what one conversation says of its system prompt: how far prompts agree that part within the earlier one.

    The shortest of these counts for all, since later turns may share history too. Empty where every prompt goes on from
    an earlier one, or repeats it: then nothing shows where the system prompt ends.
    """
    found = [p.meeting.prefix for p in pairs if p.meeting.prefix < p.theirs.length - 2]
    return [min(found)] if found else []


def _turns(told: Told, conversations: int) -> float:
    named = [one.session for one in told.asked if one.session != ANONYMOUS_SESSION]
    if len(named) * 2 > len(told.asked):
        return len(named) / len(set(named))
    return len(told.asked) / max(1, conversations)


def as_plain(spread: list[Spread]) -> list[dict[str, Any]]:
    """Return JSON-ready figures."""
    return [msgspec.to_builtins(s) for s in spread]
