"""`python -m ops.replay DATA_DIR [--verify] [--json]`: what happened, and whether it would be decided so again.

Exit codes: 0 as it should be, 1 a record diverges or the log is damaged, 2 wrong usage or no log.
"""

import itertools
import json
import sys
from pathlib import Path

import click
import msgspec

from mlxcel.core.checkpoint import decode_state, fingerprint
from mlxcel.core.redecide import fold, verify
from mlxcel.core.state import State
from ops.replay import describe
from ops.replay.source import NoHistory, read_log
from storage.errors import StorageError

DIVERGED, UNUSABLE = 1, 2


@click.command()
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option("--verify", "check", is_flag=True, help="Decide every record again; stop at the first divergence.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(data_dir: Path, check: bool, as_json: bool) -> None:
    """Print the history of a data directory, also of a running daemon (nothing is changed), and the state's fingerprint."""
    try:
        sys.exit(_verify(data_dir, as_json) if check else _print(data_dir, as_json))
    except NoHistory as fault:
        click.echo(f"mlxcel-replay: {fault}", err=True)
        sys.exit(UNUSABLE)
    except (StorageError, msgspec.MsgspecError) as fault:
        click.echo(f"mlxcel-replay: {fault}", err=True)
        sys.exit(DIVERGED)


def _print(data_dir: Path, as_json: bool) -> int:
    state, records = State(), 0
    if not as_json:
        click.echo("  ".join(describe.COLUMNS))
    history = iter(read_log(data_dir))
    first = next(history, None)
    if first is not None and first.checkpoint:
        state = decode_state(first.payload)
    elif first is not None:
        history = itertools.chain([first], history)
    for step in fold(state, history):
        records += 1
        if as_json:
            click.echo(json.dumps(describe.plain(step), ensure_ascii=False))
        else:
            click.echo("  ".join(describe.row(step)))
    _close(state, records, as_json, {})
    return 0


def _verify(data_dir: Path, as_json: bool) -> int:
    state, decided, found = verify(read_log(data_dir))
    for divergence in found:
        if as_json:
            click.echo(json.dumps({"divergence": msgspec.to_builtins(divergence)}))
        else:
            click.echo(f"record {divergence.seq} diverges in {divergence.what}:", err=True)
            click.echo(f"  recorded {divergence.recorded}\n  decided  {divergence.decided}", err=True)
    _close(state, decided, as_json, {"verified": not found})
    return DIVERGED if found else 0


def _close(state: State, records: int, as_json: bool, more: dict[str, bool]) -> None:
    mark = fingerprint(state)
    if as_json:
        click.echo(json.dumps({"records": records, "fingerprint": mark, **more}))
    else:
        said = "" if "verified" not in more else (", all decided alike" if more["verified"] else ", DIVERGED")
        click.echo(f"{records} records{said}; fingerprint {mark}")


if __name__ == "__main__":
    main()
