"""`mlxcel doctor` and `mlxcel service`: the machine and the daemon's place on it."""

import os
import platform
import sys
from pathlib import Path

import click

from mlxcel.commands import service as unit
from mlxcel.commands.options import loaded_from, refuse_missing


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def doctor(ctx: click.Context, flags: tuple[str, ...]) -> None:
    """Check model, memory, disk, permissions, port and versions. Takes the flags of serve.

    Exit codes: 0 nothing is bad, 1 something is, 2 a bad setting.
    """
    from mlxcel.commands.doctor import findings

    found = list(findings(loaded_from(list(flags))))
    for kind, what, words in found:
        click.echo(f"{kind:<5}{what:<16}{words}")
    ctx.exit(1 if any(kind == "bad" for kind, _, _ in found) else 0)


@click.group()
def service() -> None:
    """Run the daemon when you log in."""


@service.command(context_settings={"ignore_unknown_options": True})
@click.option("--no-start", is_flag=True, help="Only write the file.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def install(no_start: bool, flags: tuple[str, ...]) -> None:
    """Write the file and start the daemon; what follows is given to serve."""
    refuse_missing(loaded_from(list(flags)))  # a bad flag is told now, not in a log file later
    path = unit.install(Path.home(), platform.system(), list(flags))
    click.echo(f"wrote {path}")
    if not no_start:
        _tell(unit.carry_out(unit.steps(platform.system(), path, "start", os.getuid())))


@service.command()
def uninstall() -> None:
    """Stop the daemon (running answers finish) and remove the file. The data directory stays."""
    path = unit.place(Path.home(), platform.system())
    if not path.exists():
        click.echo(f"there is no {path}")
        return
    wrong = unit.carry_out(unit.steps(platform.system(), path, "stop", os.getuid()))
    path.unlink()
    click.echo(f"removed {path}")
    for sentence in wrong:
        click.echo(sentence, err=True)


@service.command()
def status() -> None:
    """Say whether it is installed and what the system says about it."""
    path = unit.place(Path.home(), platform.system())
    click.echo(f"{'installed' if path.exists() else 'not installed'}: {path}")
    if path.exists():
        _tell(unit.carry_out(unit.steps(platform.system(), path, "status", os.getuid())))


def _tell(wrong: list[str]) -> None:
    for sentence in wrong:
        click.echo(sentence, err=True)
    if wrong:
        sys.exit(1)
