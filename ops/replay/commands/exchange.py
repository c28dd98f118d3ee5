"""export and import: histories to hand on, traces that others published."""

import secrets
from pathlib import Path

import click

from mlxcel.core.whatif.blocks import build_trace
from ops.replay.commands.common import DIVERGED, EXIT_CODES, Unusable, emit, guarded, json_flag, source
from ops.replay.container import write_rows
from ops.replay.mooncake import BLOCK_TOKENS, read_mooncake
from ops.replay.progress import watched
from ops.replay.redact import KEY_BYTES, Redactor
from ops.replay.source import ARRIVALS, HISTORY, History


@click.command(epilog=EXIT_CODES)
@source
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option(
    "--redact", is_flag=True, help="Put keyed digests in place of tokens, sessions, request ids and messages."
)
@json_flag
@guarded
def export(source: Path, out: Path, redact: bool, as_json: bool) -> int:
    """Write the whole history into one file that every command here reads.

    Redacted, it still verifies and answers what-if as the original does; the key of the digests is thrown away.
    """
    if out.exists():
        raise Unusable(f"{out} is there already")
    history = watched(History(source), "exporting")
    redactor = Redactor(secrets.token_bytes(KEY_BYTES))
    shown = redactor.history(history) if redact else history
    notes = {"redacted": redact}
    written = write_rows(out, HISTORY, notes, ([one.seq, one.checkpoint, one.payload] for one in shown))
    if as_json:
        emit({"records": written, "file": str(out), "redacted": redact, "differing": redactor.differing})
    else:
        click.echo(f"{written} records in {out}" + (", redacted" if redact else ", with all tokens"))
    if redactor.differing:
        click.echo(f"{redactor.differing} records were decided otherwise without their tokens", err=True)
        return DIVERGED
    return 0


@click.command("import", epilog=EXIT_CODES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--format", "form", type=click.Choice(["mooncake"]), required=True, help="What FILE is.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write. [default: FILE's name with .arrivals, here]"
)
@json_flag
@guarded
def import_command(file: Path, form: str, out: Path | None, as_json: bool) -> None:
    """Turn a published trace into arrivals for what-if."""
    out = out or Path(file.with_suffix(".arrivals").name)  # traces often lie where nothing should be written
    if out.exists():
        raise Unusable(f"{out} is there already")
    try:
        trace = build_trace(watched(read_mooncake(file), "reading"), BLOCK_TOKENS)
    except ValueError as fault:
        raise Unusable(f"{file}: {fault}") from fault
    rows = ([a.at_us, list(a.blocks), a.input_tokens, a.output_tokens, a.name] for a in trace.arrivals)
    written = write_rows(out, ARRIVALS, {"block_tokens": BLOCK_TOKENS, "format": form}, rows)
    if as_json:
        emit({"arrivals": written, "blocks": trace.blocks, "file": str(out)})
    else:
        click.echo(f"{written} arrivals over {trace.blocks} blocks in {out}")
