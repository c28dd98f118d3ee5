"""Whether limits threw out what was asked for again: the log is decided again with more and more room."""

from pathlib import Path

import msgspec

from ops.diagnose.asked import Told
from ops.diagnose.findings import ADVICE, TITLES, Evidence, Finding
from ops.replay.quantity import show_size
from ops.replay.whatif import Settings, decide_again

LEAST_SHARE = 0.01
ENOUGH = 0.95  # of what an unlimited cache would have saved
DOUBLINGS = 12
_UNLIMITED = 1 << 50


class _Limit(msgspec.Struct, frozen=True):
    cause: str
    field: str
    present: int
    unlimited: int
    unit: str


def evictions_of(path: Path, told: Told) -> list[Finding]:
    """Return a finding for each limit that costs reuse. Decides the log again a few times, only where something was evicted."""
    policy = told.policy
    reasons = {reason for (_, reason), n in (told.evictions + told.entry_evictions).items() if n}
    limits = []
    if "lru" in reasons:
        limits.append(_Limit("capacity_evicts", "capacity_bytes", policy.capacity_bytes, _UNLIMITED, "bytes"))
        limits.append(_Limit("entries_evict", "max_entries", policy.max_entries, 1 << 30, "entries"))
    if "ttl" in reasons or any(one.reason == "expired" for one in told.asked):
        limits.append(_Limit("ttl_evicts", "ttl_s", policy.ttl_us // 1_000_000, 0, "s"))
    found = [finding for limit in limits if (finding := _judge(path, told, limit)) is not None]
    return found


def _settings(limit: _Limit, value: int) -> Settings:
    return msgspec.structs.replace(Settings(), **{limit.field: value})


def _judge(path: Path, told: Told, limit: _Limit) -> Finding | None:
    recorded, best, run = decide_again(path, _settings(limit, limit.unlimited))
    gain = best.tokens_saved - recorded.tokens_saved
    if gain < LEAST_SHARE * recorded.prompt_tokens or not gain:
        return None
    enough = _least(path, limit, recorded.tokens_saved + gain * ENOUGH)
    helped = sorted((s for s in run.served if s.tokens > s.recorded_tokens), key=lambda s: s.recorded_tokens - s.tokens)
    evidence = [
        Evidence(s.request, "", s.recorded_tokens, note=f"{s.tokens} tokens instead of {s.recorded_tokens}")
        for s in helped[:5]
    ]
    detail = f"{_show(limit, limit.present)} now; {_show(limit, enough)} would keep nearly all of it"
    figures = {"present": limit.present, "enough": enough, "unit": limit.unit}
    return Finding(limit.cause, TITLES[limit.cause], gain, len(helped), ADVICE[limit.cause], detail, evidence, figures)


def _least(path: Path, limit: _Limit, wanted: float) -> int:
    """Return the first doubling of the limit that saves what is wanted, found by halving; the unlimited value when none does."""
    low, high = 0, DOUBLINGS + 1
    while high - low > 1:
        middle = (low + high) // 2
        again = decide_again(path, _settings(limit, max(1, limit.present) << middle))[1]
        low, high = (low, middle) if again.tokens_saved >= wanted else (middle, high)
    return limit.unlimited if high > DOUBLINGS else max(1, limit.present) << high


def _show(limit: _Limit, value: int) -> str:
    if limit.unit == "bytes":
        return show_size(value)
    return "no limit" if value == limit.unlimited else f"{value} {limit.unit}"
