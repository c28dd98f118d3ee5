"""The table of settings as command line options: how they are given, shown and read."""

import os
import sys
from typing import Any, NoReturn

import click

from mlxcel.config import places, show
from mlxcel.config.load import BadSetting, Loaded, load, table
from mlxcel.config.option import Flag, Option

USAGE_EXIT = 2


def fail(message: str, code: int) -> NoReturn:
    """Say why and end the process."""
    click.echo(f"mlxcel: {message}", err=True)
    sys.exit(code)


class GroupedCommand(click.Command):
    """A command whose help shows the settings under their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a group, in the order of the table."""
        by_name = {param.name: param for param in self.params}
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, row in table().items():
            lines = _help_lines(name, row)
            if lines:
                sections.setdefault(row.group, []).extend(lines)
        others = [param.get_help_record(ctx) for key, param in by_name.items() if key in ("as_json", "help")]
        sections["Other"] = [record for record in others if record]
        environment = [(row.env[0].name, show.help_words(name, row)) for name, row in table().items() if not row.flags]
        sections["By environment only"] = environment
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=34)


def _spelling(flag: Flag, row: Option) -> str:
    metavar = (flag.kind or row.kind).metavar
    if flag.sets is not None:
        return ", ".join(flag.names)
    return ", ".join(flag.names) + (f"[={metavar}]" if flag.bare is not None else f" {metavar}")


def _help_lines(name: str, row: Option) -> list[tuple[str, str]]:
    if not row.flags:
        return []
    first, *others = row.flags
    lines = [(_spelling(first, row), show.help_words(name, row))]
    return lines + [(_spelling(flag, row), f"{flag.help}.") for flag in others]


def settings_options() -> list[click.Parameter]:
    """Return click's options for every flag of the table. Values stay text: the table's own parsers judge them."""
    options: list[click.Parameter] = []
    for name, row in table().items():
        for index, flag in enumerate(row.flags):
            words: dict[str, Any] = {"default": None, "help": name}
            if flag.sets is not None:
                words.update(is_flag=True, flag_value=flag.sets, type=str)
            elif flag.bare is not None:
                words.update(is_flag=False, flag_value=flag.bare, type=str)
            else:
                words.update(type=str, multiple=row.repeat)
            options.append(click.Option([*flag.names, f"{name}__{index}"], **words))
    return options


def loaded(chosen: dict[str, Any]) -> Loaded:
    """Return the settings that click's values and the environment give. Ends the process for a bad one."""
    given: dict[str, Any] = {}
    for name, row in table().items():
        for index, flag in enumerate(row.flags):
            text = chosen.get(f"{name}__{index}")
            if text is not None and text != ():
                given[flag.name] = text
    try:
        return load(given, os.environ)
    except BadSetting as error:
        fail(str(error), USAGE_EXIT)


def refuse_missing(found: Loaded) -> None:
    """End the process for the first path among the settings that isn't there."""
    for fault in places.faults(found):
        fail(fault, USAGE_EXIT)


def loaded_from(flags: list[str]) -> Loaded:
    """Return the settings that `serve` would have with these flags. Ends the process for a bad one; paths are not looked at."""
    reader = click.Command("serve", params=settings_options())
    return loaded(reader.make_context("serve", flags, resilient_parsing=False).params)
