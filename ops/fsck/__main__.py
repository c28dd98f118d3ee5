"""`mlxcel fsck [--repair] [--json]`, `mlxcel compact`, `mlxcel migrate --check`: care for a data directory.

Exit codes: 0 nothing is wrong (or all was repaired), 1 something is wrong, 2 wrong usage, 3 a daemon owns the directory.
"""

import errno
import json
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from migrations.lmdb_steps import STEPS
from migrations.runner import pending, version_of
from mlxcel.config.settings import default_data_dir
from ops.fsck.examine import examine
from ops.fsck.repair import repair
from storage.errors import DirectoryLocked, StorageError
from storage.lmdb_tier.compact import compact as shrink
from storage.lmdb_tier.environment import DATA_FILE, TierOptions, open_environment
from storage.lock import DirectoryLock

WRONG, USAGE, IN_USE = 1, 2, 3
HARMLESS = ("log_torn", "piece_missing")  # the next start settles these by itself

_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="MLXCEL_DATA_DIR",
    default=default_data_dir,
    help="The data directory. [env: MLXCEL_DATA_DIR]",
)


def _fail(message: object, code: int) -> NoReturn:
    click.echo(f"mlxcel: {message}", err=True)
    sys.exit(code)


def _words(fault: Exception, data_dir: Path) -> str:
    """Return a fault as a sentence with what to do; operating faults of storage already are one."""
    if not isinstance(fault, OSError):
        return str(fault)
    place = fault.filename or data_dir
    match fault.errno:
        case errno.EROFS:
            return f"{place} is on a volume that is mounted read-only; mount it writable, or work on a copy elsewhere"
        case errno.EACCES | errno.EPERM:
            return f"{place} may not be opened or changed by this user; run this as the owner of {data_dir}"
        case errno.ENOSPC:
            return f"no room for {place}; free some space on its volume and run this again"
    return f"{place}: {fault.strerror or fault}"


def _must_exist(data_dir: Path) -> None:
    if not data_dir.is_dir():
        _fail(f"{data_dir} is no data directory", USAGE)


@click.command("fsck")
@_data_dir
@click.option("--repair", "mend", is_flag=True, help="Put right what is found. Needs the directory to itself.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fsck(data_dir: Path, mend: bool, as_json: bool) -> None:
    """Check log, store and their agreement; changes nothing without --repair. Works beside a running daemon."""
    _must_exist(data_dir)
    try:
        if mend:
            with DirectoryLock(data_dir):
                report = repair(data_dir, examine(data_dir, owned=True))
        else:
            report = examine(data_dir).report
    except DirectoryLocked as fault:
        _fail(fault, IN_USE)
    except (StorageError, OSError) as fault:
        _fail(_words(fault, data_dir), WRONG)
    click.echo(json.dumps(msgspec.to_builtins(report)) if as_json else "\n".join(report.say()))
    left = [f for f in report.findings if f.kind not in HARMLESS and not (mend and f.repair)]
    sys.exit(WRONG if left else 0)


@click.command("compact")
@_data_dir
def compact(data_dir: Path) -> None:
    """Shrink the store's file to what it holds. Refuses while a daemon runs; a crash leaves the old file or the new."""
    _must_exist(data_dir)
    try:
        with DirectoryLock(data_dir):
            before, after = shrink(data_dir / "kv")
    except DirectoryLocked as fault:
        _fail(fault, IN_USE)
    except (StorageError, OSError) as fault:
        _fail(_words(fault, data_dir), WRONG)
    click.echo(f"{data_dir / 'kv' / DATA_FILE}: {before} bytes before, {after} bytes after")


@click.command("migrate")
@_data_dir
@click.option("--check", is_flag=True, help="Say what the next start will change, which is all that this command does.")
def migrate(data_dir: Path, check: bool) -> None:
    """Say which steps bring the store to this program's schema; `serve` takes them when it starts. Changes nothing.

    Exit codes: 0 up to date, 1 steps are pending or the store is newer than this program.
    """
    _must_exist(data_dir)
    if not (data_dir / "kv" / DATA_FILE).exists():
        click.echo("there is no store yet")
        return
    try:
        env = open_environment(data_dir / "kv", TierOptions(), read_only=True)
    except StorageError as fault:
        _fail(fault, WRONG)
    try:
        found, newest = version_of(env), max((step.number for step in STEPS), default=0)
        steps = pending(found, STEPS) if found <= newest else []
    finally:
        env.close()
    click.echo(f"schema version {found}; this program knows {newest}")
    if found > newest:
        _fail("the store was written by a newer program; use that one, or another --data-dir", WRONG)
    for step in steps:
        click.echo(f"pending: {step.number} {step.name}")
    sys.exit(WRONG if steps else 0)


@click.group()
def main() -> None:
    """Care for a data directory."""


for _command in (fsck, compact, migrate):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="python -m ops.fsck")
