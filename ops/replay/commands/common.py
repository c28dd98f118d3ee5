"""What all commands share: exit codes, options, faults turned into messages."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from ops.replay.container import BadFile
from ops.replay.mooncake import BadTrace
from ops.replay.source import NoHistory
from storage.errors import StorageError

FINE, DIVERGED, UNUSABLE = 0, 1, 2
EXIT_CODES = (
    "Exit codes: 0 as it should be; 1 a record diverges or the log is damaged; 2 wrong usage, no log, not found."
)

source = click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path))
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Unusable(Exception):
    """The request can't be answered from this source; the message says why."""


def program() -> str:
    """Return the name under which the running command was called, for messages."""
    context = click.get_current_context(silent=True)
    return "mlxcel diagnose" if context is not None and context.command.name == "diagnose" else "mlxcel-replay"


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turn faults into a line on stderr and the documented exit code."""

    @functools.wraps(command)
    def run(*args: Any, **chosen: Any) -> None:
        try:
            code = command(*args, **chosen)
        except (NoHistory, Unusable, BadTrace) as fault:
            click.echo(f"{program()}: {fault}", err=True)
            sys.exit(UNUSABLE)
        except (StorageError, BadFile, msgspec.MsgspecError) as fault:
            click.echo(f"{program()}: {fault}", err=True)
            sys.exit(DIVERGED)
        except (KeyError, ValueError, AssertionError) as fault:
            click.echo(f"{program()}: a record does not fit what came before it: {fault!r}", err=True)
            sys.exit(DIVERGED)
        except BrokenPipeError:
            raise  # click ends quietly when the reader of our output has gone
        except OSError as fault:
            click.echo(f"{program()}: {fault}", err=True)
            sys.exit(UNUSABLE)
        sys.exit(code or FINE)

    return run


def emit(values: Any) -> None:
    """Print one JSON value on one line."""
    click.echo(json.dumps(values, ensure_ascii=False, default=str))


def print_table(rows: list[list[str]]) -> None:
    """Print rows of text in columns; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        click.echo("  ".join(cells).rstrip())
