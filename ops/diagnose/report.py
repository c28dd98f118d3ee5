"""The whole diagnosis: findings ranked by tokens that would have been saved, conditions, and figures for many machines."""

from pathlib import Path
from typing import Any

import msgspec

from ops.diagnose.align import pair_up
from ops.diagnose.asked import Told, read_told
from ops.diagnose.causes import causes_of
from ops.diagnose.evictions import evictions_of
from ops.diagnose.findings import Finding, TextOf
from ops.diagnose.spread import Condition, Spread, conditions, dilution, spread_over
from ops.replay.progress import ticking

USUAL_MACHINES = [1, 2, 4, 8]


class Diagnosis(msgspec.Struct, frozen=True):
    """`token_rate`: share of prompt tokens that were reused. `findings`: the costliest first."""

    requests: int
    prompt_tokens: int
    reused_tokens: int
    hits: int
    served_cold: dict[str, int]
    miss_reasons: dict[str, int]
    findings: list[Finding]
    conditions: list[Condition]
    spread: list[Spread]
    left_out: int

    @property
    def token_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def diagnose(path: Path, text_of: TextOf = None, instances: int = 1, last: int = 0) -> Diagnosis:
    """Read the log at `path` and find what keeps reuse low. `instances`: machines that share the traffic.

    Raises as `History`. Nothing is changed.
    """
    with ticking("reading, comparing, deciding again") as tick:
        told = read_told(path, last)
        tick(1)
        pairs = pair_up(told.asked)
        tick(1)
        found = [*causes_of(told, pairs, text_of), *evictions_of(path, told)]
    held = conditions(told, pairs)
    spread = spread_over(told, sorted({*USUAL_MACHINES, instances}), held[1].value or 0.0)
    spread_finding = dilution(told, spread, instances)
    if spread_finding is not None:
        found.append(spread_finding)
    found.sort(key=lambda f: (-f.tokens, -f.requests, f.cause))
    return Diagnosis(
        requests=len(told.asked),
        prompt_tokens=told.prompt_tokens,
        reused_tokens=told.reused_tokens,
        hits=sum(1 for one in told.asked if one.reused),
        served_cold=dict(told.cold),
        miss_reasons=_reasons(told),
        findings=found,
        conditions=held,
        spread=spread,
        left_out=told.left_out,
    )


def _reasons(told: Told) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in told.asked:
        if one.reason and not one.reused:
            counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def lines(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosis in words, a line an item."""
    rate = f"{diagnosis.token_rate:.1%} of {diagnosis.prompt_tokens} prompt tokens reused"
    said = [f"{diagnosis.requests} requests, {diagnosis.hits} with a hit; {rate}"]
    said += [f"  missed: {n} x {reason}" for reason, n in sorted(diagnosis.miss_reasons.items(), key=lambda r: -r[1])]
    said += [f"  past the cache: {n} x {reason}" for reason, n in diagnosis.served_cold.items()]
    if not diagnosis.findings:
        said.append("nothing found that keeps reuse low")
    for number, one in enumerate(diagnosis.findings, start=1):
        share = one.tokens / max(1, diagnosis.prompt_tokens)
        said.append(
            f"{number}. {one.title} [{one.cause}]: {one.tokens} tokens ({share:.1%}) in {one.requests} requests"
        )
        if one.detail:
            said.append(f"   {one.detail}")
        for e in one.evidence[:3]:
            if e.note:
                said.append(f"   {e.request}: {e.note}")
            else:
                texts = f" {e.ours_text!r} against {e.theirs_text!r}" if e.ours_text or e.theirs_text else ""
                said.append(
                    f"   {e.request} parts from {e.against} at token {e.position}:{texts} {e.ours} / {e.theirs}"
                )
        said.append(f"   what to do: {one.advice}")
    said.append("conditions under which a prefix cache pays:")
    said += [_condition(condition) for condition in diagnosis.conditions]
    said.append("the same requests over N machines (share of prompt tokens reused; room for all):")
    said += [
        f"  N={s.machines}: random routing {s.random_rate:.1%}, by session {s.sticky_rate:.1%}"
        f" (quoted p x (1 - 1/N): {s.quoted_bound:.1%})"
        for s in diagnosis.spread
    ]
    said.append(
        "  the quoted formula grows with N, so it can't be a bound on dilution; a next turn finds its machine with 1/N"
    )
    if diagnosis.left_out:
        said.append(f"({diagnosis.left_out} earlier requests were left out)")
    return said


def _condition(one: Condition) -> str:
    if one.value is None:
        return f"  ?    {one.name}: not known, the prompts don't show where it ends (wanted: {one.wanted})"
    return f"  {'yes' if one.holds else 'no '}  {one.name}: {one.value} (wanted: {one.wanted})"


def plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return JSON-ready values."""
    values: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return {**values, "token_rate": diagnosis.token_rate}
