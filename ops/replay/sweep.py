"""Many what-ifs at once: every policy at every value, on the processors there are."""

import csv
import io
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from ops.replay import svg
from ops.replay.quantity import Sweep, show_value
from ops.replay.whatif import Arrivals, Result, Settings, decide_again, load_arrivals, simulate_policy

_FIELDS = {
    "capacity": "capacity_bytes",
    "blocks": "capacity_blocks",
    "ttl": "ttl_s",
    "max-entries": "max_entries",
    "min-prefix": "min_prefix",
}
_loaded: Arrivals | None = None


class Point(msgspec.Struct, frozen=True):
    """One run of a sweep."""

    value: int
    result: Result


def plan(sweep: Sweep, base: Settings, policies: tuple[str, ...]) -> list[tuple[int, Settings]]:
    """Return every (value, settings) to run; no policies means the server's own `decide`."""
    jobs = []
    for policy in policies or ("",):
        for value in sweep.values:
            jobs.append((value, msgspec.structs.replace(base, policy=policy, **{_FIELDS[sweep.name]: value})))
    return jobs


def run_sweep(
    path: Path,
    jobs: list[tuple[int, Settings]],
    kv_bytes_per_token: int,
    tick: Callable[[], None] = lambda: None,
    workers: int = 0,
) -> list[Point]:
    """Run all jobs, in processes of their own where there is more than one; in the order of `jobs`. Raises as the readers."""
    workers = min(workers or os.cpu_count() or 1, 8, len(jobs))
    if workers <= 1:
        _load(path, kv_bytes_per_token, jobs[0][1].policy != "")
        points = []
        for job in jobs:
            points.append(_run(path, *job))
            tick()
        return points
    # Spawned, not forked: the same on every system, and safe whatever threads the caller has.
    context = multiprocessing.get_context("spawn")
    simulated = jobs[0][1].policy != ""
    with ProcessPoolExecutor(workers, context, _load, (path, kv_bytes_per_token, simulated)) as pool:
        futures = [pool.submit(_run, path, *job) for job in jobs]
        for future in as_completed(futures):
            future.result()
            tick()
        return [future.result() for future in futures]


def _load(path: Path, kv_bytes_per_token: int, simulated: bool) -> None:
    global _loaded
    _loaded = load_arrivals(path, kv_bytes_per_token) if simulated else None


def _run(path: Path, value: int, settings: Settings) -> Point:
    if _loaded is not None:
        return Point(value, simulate_policy(_loaded, settings))
    return Point(value, decide_again(path, settings)[1])


def as_csv(sweep: Sweep, points: list[Point]) -> str:
    """Return one row a run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([sweep.name, "policy", "method", "requests", "hits", "hit_rate", "tokens_saved", "token_rate",
                     "block_rate", "evictions"])  # fmt: skip
    for point in points:
        r = point.result
        block = "" if r.block_rate is None else f"{r.block_rate:.6f}"
        writer.writerow([point.value, r.policy, r.method, r.requests, r.hits, f"{r.hit_rate:.6f}", r.tokens_saved,
                         f"{r.token_rate:.6f}", block, r.evictions])  # fmt: skip
    return out.getvalue()


def rate(result: Result) -> float:
    """Return the curve's height: the share of blocks served where that is known, else of tokens."""
    return result.token_rate if result.block_rate is None else result.block_rate


def table(sweep: Sweep, points: list[Point]) -> list[list[str]]:
    """Return rows of text: a header, then one row a value with a column a policy."""
    names = list(dict.fromkeys(point.result.policy for point in points))
    rows = [[sweep.name, *names]]
    for value in sweep.values:
        found = {p.result.policy: rate(p.result) for p in points if p.value == value}
        rows.append([show_value(sweep.name, value), *(f"{found[name]:.2%}" for name in names)])
    return rows


def as_svg(sweep: Sweep, points: list[Point], title: str) -> str:
    """Return the curves as a picture."""
    names = list(dict.fromkeys(point.result.policy for point in points))
    lines = {name: [rate(p.result) for p in points if p.result.policy == name] for name in names}
    labels = [show_value(sweep.name, value) for value in sweep.values]
    return svg.draw(title, sweep.name, "prompt served from cache", labels, [float(v) for v in sweep.values], lines)
