"""Flags that the tools and the runbook advise are flags that the programs take."""

import re

import click
import pytest

from mlxcel.config.load import table
from tests.e2e.daemon import ROOT

NAMED = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
SETTINGS = {name for row in table().values() for flag in row.flags for name in flag.names}


@pytest.mark.parametrize(
    "file", sorted(p.name for p in (ROOT / "ops/diagnose").glob("*.py") if p.name != "__main__.py")
)
def test_advice_names_settings_that_exist(file: str) -> None:
    """Every flag that the diagnosis can tell someone to set is in the table of settings."""
    named = set(NAMED.findall((ROOT / "ops/diagnose" / file).read_text("utf-8")))
    assert named <= SETTINGS
    assert named or file != "findings.py"


def test_the_runbook_names_flags_that_exist() -> None:
    """Every flag in the runbook's prose belongs to the server or to one of the commands."""
    text = re.sub(r"```sh\n.*?```", "", (ROOT / "ops/runbook.md").read_text("utf-8"), flags=re.DOTALL)  # those are run
    named = set(NAMED.findall(text))
    assert named <= SETTINGS | _options()
    assert "--prompt-cache-min-prefix" in named


def _options() -> set[str]:
    from mlxcel.commands import cache, machine
    from ops.diagnose.__main__ import diagnose
    from ops.fsck.__main__ import main as fsck
    from ops.replay.__main__ import main as replay

    found: set[str] = set()
    waiting: list[object] = [cache.cache, machine.service, diagnose, fsck, replay]
    while waiting:
        command = waiting.pop()
        if isinstance(command, click.Group):
            waiting.extend(command.commands.values())
        if isinstance(command, click.Command):
            found.update(name for param in command.params for name in (*param.opts, *param.secondary_opts))
    return found
