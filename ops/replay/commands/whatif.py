"""what-if: the same arrivals under other settings."""

from pathlib import Path
from typing import Any

import click
import msgspec

from mlxcel.core.whatif.simulate import POLICIES
from ops.replay import sweep as sweeps
from ops.replay.commands.common import EXIT_CODES, Unusable, emit, guarded, json_flag, print_table, source
from ops.replay.progress import ticking
from ops.replay.quantity import Sweep, parse_size, parse_sweep, show_size
from ops.replay.whatif import (
    Result,
    Settings,
    decide_again,
    is_history,
    load_arrivals,
    simulate_policy,
    unbounded_rate,
)


class Size(click.ParamType):
    """A number of bytes with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it; click reports what it can't read."""
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as fault:
            self.fail(str(fault), param, ctx)


@click.command("what-if", epilog=EXIT_CODES)
@source
@click.option("--policy", "policies", multiple=True, type=click.Choice([*POLICIES, "all"]),
              help="Simulate blocks under this ranking (repeat it, or: all). Without: decide a history again.")  # fmt: skip
@click.option("--capacity", type=Size(), help="Memory for KV, e.g. 8GiB. Without: as recorded; for arrivals unbounded.")
@click.option("--disk-capacity", type=Size(), help="Disk tier, e.g. 64GiB.")
@click.option("--ttl", type=int, help="Seconds; 0 is never.")
@click.option("--max-entries", type=int)
@click.option("--min-prefix", type=int, help="Tokens.")
@click.option("--ranking", type=click.Choice(["leaf-lru", "entry-lru"]), help="The server's own order of eviction.")
@click.option("--kv-bytes-per-token", type=Size(), default=0, help="For arrivals. [default: as recorded, else 131072]")
@click.option(
    "--sweep", "span", help="NAME=LOW..HIGH or NAME=A,B,C; NAME: capacity, blocks, ttl, max-entries, min-prefix."
)
@click.option("--points", type=click.IntRange(1, 64), default=8, show_default=True, help="Values of a sweep's range.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write the sweep's runs there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Write the sweep's curves there, as SVG.")
@click.option("--workers", type=click.IntRange(0, 64), default=0, help="Processes. [default: one a processor]")
@json_flag
@guarded
def what_if(
    source: Path,
    policies: tuple[str, ...],
    capacity: int | None,
    disk_capacity: int | None,
    ttl: int | None,
    max_entries: int | None,
    min_prefix: int | None,
    ranking: str | None,
    kv_bytes_per_token: int,
    span: str | None,
    points: int,
    csv_file: Path | None,
    plot_file: Path | None,
    workers: int,
    as_json: bool,
) -> None:
    """Decide recorded arrivals again under other settings, and compare hit rate, tokens saved and evictions.

    SOURCE is a data directory, an exported history, an imported trace, or a Mooncake trace itself. A history is decided
    again by the server's own logic. With --policy, and for traces, blocks are simulated instead: capacity is then the only
    setting that counts. The policy "belady" knows the future: a bound on equal blocks, which no real policy reaches.
    """
    if not source.exists():
        raise Unusable(f"{source} does not exist")
    if "all" in policies or (not policies and not is_history(source)):
        policies = POLICIES
    base = Settings("", capacity, disk_capacity, ttl, max_entries, min_prefix, ranking)
    if policies and any(setting is not None for setting in (disk_capacity, ttl, max_entries, min_prefix, ranking)):
        raise Unusable("a simulated policy knows capacity only; leave --policy away to change other settings")
    if span is not None:
        _sweep(source, _parse(span, points), base, policies, kv_bytes_per_token, csv_file, plot_file, workers, as_json)
    elif policies:
        _simulate(source, base, policies, kv_bytes_per_token, as_json)
    else:
        _again(source, base, as_json)


def _parse(span: str, points: int) -> Sweep:
    try:
        return parse_sweep(span, points)
    except ValueError as fault:
        raise Unusable(str(fault)) from fault


def _again(source: Path, base: Settings, as_json: bool) -> None:
    with ticking("deciding again"):
        recorded, decided, run = decide_again(source, base)
    if as_json:
        emit({"recorded": msgspec.to_builtins(recorded), "what_if": msgspec.to_builtins(decided),
              "not_modelled": dict(run.skipped)})  # fmt: skip
        return
    _results([recorded, msgspec.structs.replace(decided, policy="what if")])
    changed = [s for s in run.served if s.tokens != s.recorded_tokens]
    more = sum(1 for s in changed if s.tokens > s.recorded_tokens)
    click.echo(f"{more} requests would reuse more, {len(changed) - more} less")
    if run.skipped:
        click.echo(f"not modelled: {', '.join(f'{n} {name}' for name, n in run.skipped.items())}", err=True)


def _simulate(source: Path, base: Settings, policies: tuple[str, ...], kv_bytes: int, as_json: bool) -> None:
    arrivals = load_arrivals(source, kv_bytes)
    results = [simulate_policy(arrivals, msgspec.structs.replace(base, policy=name)) for name in policies]
    unbounded = unbounded_rate(arrivals)
    if as_json:
        emit({"what_if": msgspec.to_builtins(results), "unbounded_block_rate": unbounded,
              "block_bytes": arrivals.block_bytes, "blocks": arrivals.trace.blocks})  # fmt: skip
        return
    _results(results)
    click.echo(f"{arrivals.trace.blocks} blocks of {show_size(arrivals.block_bytes)}; "
               f"an unbounded cache serves {unbounded:.2%} of prompt blocks")  # fmt: skip


def _sweep(
    source: Path,
    sweep: Sweep,
    base: Settings,
    policies: tuple[str, ...],
    kv_bytes: int,
    csv_file: Path | None,
    plot_file: Path | None,
    workers: int,
    as_json: bool,
) -> None:
    if policies and sweep.name not in ("capacity", "blocks"):
        raise Unusable("a simulated policy knows capacity only (in bytes, or in blocks)")
    if not policies and sweep.name == "blocks":
        raise Unusable("blocks are for simulated policies: name one with --policy, or sweep capacity")
    jobs = sweeps.plan(sweep, base, policies)
    with ticking("what if", len(jobs)) as tick:
        points = sweeps.run_sweep(source, jobs, kv_bytes, lambda: tick(1), workers)
    if csv_file is not None:
        csv_file.write_text(sweeps.as_csv(sweep, points), encoding="utf-8")
    if plot_file is not None:
        plot_file.write_text(sweeps.as_svg(sweep, points, f"What if: {source.name}"), encoding="utf-8")
    if as_json:
        emit({"sweep": sweep.name, "points": msgspec.to_builtins(points)})
        return
    print_table(sweeps.table(sweep, points))
    what = "prompt blocks" if points[0].result.block_rate is not None else "prompt tokens"
    click.echo(f"share of {what} served from the cache")


def _results(results: list[Result]) -> None:
    """Print what was saved first: nearly every request of a trace shares its first block, so hits alone say little."""
    blocks = all(r.block_rate is not None for r in results)
    rows = [["", *(["of blocks"] if blocks else []), "of tokens", "tokens saved", "requests", "any hit", "evictions"]]
    for r in results:
        of_blocks = [f"{r.block_rate:.2%}"] if blocks else []
        rows.append([r.policy, *of_blocks, f"{r.token_rate:.2%}", str(r.tokens_saved), str(r.requests),
                     f"{r.hits} ({r.hit_rate:.2%})", str(r.evictions)])  # fmt: skip
    print_table(rows)
