"""show, fold, verify, diff, explain: what a history says."""

import json
from pathlib import Path

import click
import msgspec

from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.redecide import Step, verify
from ops.replay import describe, explain, summary
from ops.replay.commands.common import DIVERGED, EXIT_CODES, Unusable, emit, guarded, json_flag, source
from ops.replay.progress import watched
from ops.replay.source import History
from ops.replay.walk import Until, fold_until, moments, open_history, parse_until
from ops.tokens import text_reader


@click.command(hidden=True, epilog=EXIT_CODES)
@source
@click.option("--verify", "check", is_flag=True, help="Decide every record again; stop at the first divergence.")
@json_flag
@guarded
def show(source: Path, check: bool, as_json: bool) -> int:
    """Print the history, one line a record, and the state's fingerprint: the short form without a command."""
    return _verify(source, as_json, stop_at_first=True) if check else _print(source, as_json)


@click.command("verify", epilog=EXIT_CODES)
@source
@click.option("--all", "collect", is_flag=True, help="Go on after a divergence and report every one.")
@json_flag
@guarded
def verify_command(source: Path, collect: bool, as_json: bool) -> int:
    """Decide every record again and compare with what was recorded. Also checks each checkpoint against the folded state.

    After damage in the log nothing can be verified: what came before it is, and the place is told.
    """
    return _verify(source, as_json, stop_at_first=not collect)


@click.command(epilog=EXIT_CODES)
@source
@click.option("--until", help="Stop after this sequence number or ISO time (UTC unless it says otherwise).")
@json_flag
@guarded
def fold(source: Path, until: str | None, as_json: bool) -> None:
    """Show the state at the end, or at any point: settings, statistics, namespaces, fingerprint."""
    state = fold_until(watched(History(source), "folding"), _point(until))
    values = summary.summary(state)
    if as_json:
        emit(values)
        return
    click.echo(f"at          {values['at']}")
    for namespace in values["namespaces"]:
        entries = namespace["entries"]
        click.echo(f"namespace   {namespace['id']}: {namespace['model']} ({namespace['reuse']}), {entries} entries")
    for group in ("policy", "stats"):
        click.echo(group)
        for name, value in values[group].items():
            click.echo(f"  {name:<26} {value}")
    click.echo(f"fingerprint {values['fingerprint']}")


@click.command(epilog=EXIT_CODES)
@source
@click.argument("first")
@click.argument("second")
@json_flag
@guarded
def diff(source: Path, first: str, second: str, as_json: bool) -> None:
    """Show what changed between two points, each a sequence number or an ISO time."""
    pictures = [summary.picture(fold_until(watched(History(source), "folding"), _point(p))) for p in (first, second)]
    changed = summary.difference(*pictures)
    if as_json:
        emit(changed)
        return
    for name, value in changed.items():
        if isinstance(value, dict):
            click.echo(name)
            for key, what in value.items():
                said = f"{what[0]} -> {what[1]}" if isinstance(what, list) else str(what)
                click.echo(f"  {key:<26} {said}")
        else:
            click.echo(f"{name}: {len(value)}")
            for item in value[:20]:
                click.echo(f"  {item if isinstance(item, str) else json.dumps(item)}")


@click.command("explain", epilog=EXIT_CODES)
@source
@click.argument("request_id")
@click.option("--model", type=click.Path(path_type=Path), help="Model directory, for the text around a divergence.")
@json_flag
@guarded
def explain_command(source: Path, request_id: str, model: Path | None, as_json: bool) -> int:
    """Say why a request hit, missed or was refused: candidates, where each diverged, what had been evicted before."""
    found = explain.explain(source, request_id, text_reader(model))
    if found is None:
        raise Unusable(f"{source} knows no request {request_id}")
    if as_json:
        emit(explain.plain(found))
        return 0
    click.echo(f"request {found.request}, record {found.seq}, {summary.instant(found.at_us)}")
    click.echo(f"{found.outcome}: {found.reused_tokens} of {found.prompt_tokens} tokens reused")
    click.echo(f"rule: {found.rule} (min_prefix {found.min_prefix_tokens}, {found.known_tokens} tokens known)")
    for one in found.candidates:
        click.echo(
            f"  entry {one.entry} ({one.tokens} tokens, session {one.session_key}): agrees for {one.common_tokens}"
        )
        if one.theirs or one.ours:
            click.echo(f"    then it has {one.theirs} {one.theirs_text!r}, the prompt has {one.ours} {one.ours_text!r}")
    for piece in found.left_before:
        when = summary.instant(piece.at_us)
        click.echo(
            f"  tokens {piece.start}-{piece.stop} of it left {piece.tier} at record {piece.seq}, {when}: {piece.reason}"
        )
    for line in [*found.other_namespaces, *found.afterwards]:
        click.echo(f"  {line}")
    return 0


def _point(text: str | None) -> Until:
    if text is None:
        return Until()
    try:
        return parse_until(text)
    except ValueError as fault:
        raise Unusable(f"{text!r} is neither a sequence number nor an ISO time: {fault}") from fault


def _print(path: Path, as_json: bool) -> int:
    records = 0
    history = History(path)
    state, rest = open_history(history)
    if not as_json:
        click.echo("  ".join(describe.COLUMNS))
    for moment in moments(state, rest):
        records += 1
        step = Step(moment.seq, moment.record)
        if as_json:
            emit(describe.plain(step))
        else:
            click.echo("  ".join(describe.row(step)))
    mark = fingerprint(state)
    if as_json:
        emit({"records": records, "fingerprint": mark})
    else:
        click.echo(f"{records} records; fingerprint {mark}")
        _tell_torn(history)
    return 0


def _verify(path: Path, as_json: bool, stop_at_first: bool) -> int:
    history = History(path, stop_at_damage=True)
    state, decided, found = verify(watched(history, "verifying"), stop_at_first)
    bad = bool(found) or history.fault is not None
    for divergence in found:
        if as_json:
            emit({"divergence": msgspec.to_builtins(divergence)})
        else:
            click.echo(f"record {divergence.seq} diverges in {divergence.what}:", err=True)
            click.echo(f"  recorded {divergence.recorded}\n  decided  {divergence.decided}", err=True)
    if history.fault is not None:
        click.echo(f"mlxcel-replay: {history.fault}", err=True)
    mark = fingerprint(state)
    if as_json:
        values = {"records": decided, "fingerprint": mark, "verified": not bad}
        torn = history.torn
        if torn is not None:
            values["torn"] = {
                "file": str(torn.file),
                "offset": torn.offset,
                "bytes": torn.cut_bytes,
                "reason": torn.reason,
            }
        if history.fault is not None:
            values["fault"] = str(history.fault)
        emit(values)
    else:
        said = ", all decided alike" if not found else ", DIVERGED"
        said += ", then DAMAGED" if history.fault is not None else ""
        click.echo(f"{decided} records{said}; fingerprint {mark}")
        _tell_torn(history)
    return DIVERGED if bad else 0


def _tell_torn(history: History) -> None:
    torn = history.torn
    if torn is not None:
        where = f"{torn.file.name} byte {torn.offset}"
        click.echo(f"the log ends unfinished at {where}: {torn.cut_bytes} bytes ({torn.reason})", err=True)
