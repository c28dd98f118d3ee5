"""Settings in words: help of one row, the effective settings, a table for the documentation."""

from pathlib import Path
from typing import Any

import msgspec

from mlxcel.config.load import Loaded, table
from mlxcel.config.option import Option
from mlxcel.config.settings import Settings

HIDDEN = "(hidden)"


def default_words(name: str, row: Option) -> str:
    """Return the default of a field as a person would write it, the same on every machine."""
    if row.default_text:
        return row.default_text
    field = next(f for f in msgspec.structs.fields(Settings) if f.name == name)
    return value_words(field.default, row)


def value_words(value: Any, row: Option) -> str:
    """Return a value as it would be written on the command line."""
    if value is None or value == ():
        return row.default_text or "none"
    if row.secret:
        return HIDDEN
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    return str(value)


def help_words(name: str, row: Option) -> str:
    """Return the help text of a row, with its default and its variables."""
    facts = [f"default: {default_words(name, row)}"]
    if row.env:
        facts.append("env: " + ", ".join(env.name for env in row.env))
    return f"{row.help}. [{'; '.join(facts)}]"


def rows(loaded: Loaded) -> list[tuple[str, str, str, str]]:
    """Return (group, setting, value, origin) of each setting."""
    return [
        (row.group, name, value_words(getattr(loaded.settings, name), row), loaded.origins[name])
        for name, row in table().items()
    ]


def as_plain(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return name -> {"value", "origin"} with plain JSON values; secrets are hidden."""
    plain: dict[str, dict[str, Any]] = {}
    for name, row in table().items():
        value = getattr(loaded.settings, name)
        if row.secret and value:
            value = HIDDEN
        plain[name] = {"value": str(value) if isinstance(value, Path) else value, "origin": loaded.origins[name]}
    return plain


def markdown() -> str:
    """Return the table of all flags for the README."""
    lines = ["| flag | environment | default | what it does |", "|---|---|---|---|"]
    for name, row in table().items():
        flags = ", ".join(f"`{flag_words}`" for flag in row.flags for flag_words in flag.names) or "none"
        env = ", ".join(f"`{env.name}`" for env in row.env)
        lines.append(f"| {flags} | {env} | {default_words(name, row)} | {row.help} |")
    return "\n".join(lines)


if __name__ == "__main__":  # the README's table is pasted from here, and a test compares them
    print(markdown())
