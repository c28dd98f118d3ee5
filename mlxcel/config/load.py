"""Command line over environment over default, with a record of where each value came from."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from mlxcel.config.kinds import BadValue, Kind
from mlxcel.config.option import Flag, Option
from mlxcel.config.settings import Settings

DEFAULT = "default"
Given = Mapping[str, str | Sequence[str]]


class BadSetting(Exception):
    """A setting that can't be used. The message names flag or variable, the value, and what is accepted."""


class Loaded(msgspec.Struct, frozen=True):
    """The settings, and for each field the flag or variable that it came from, or "default"."""

    settings: Settings
    origins: dict[str, str]


@functools.cache
def table() -> dict[str, Option]:
    """Return field name -> its row, in the order of the table."""
    hints = get_type_hints(Settings, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in Settings.__struct_fields__}


def load(given: Given, environ: Mapping[str, str]) -> Loaded:
    """Resolve all settings.

    `given`: flag name as spelt last in its row (`--port`) -> the text, or the texts of one that may repeat. A variable
    that is set but empty counts as not set. Raises BadSetting.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, row in table().items():
        found = _from_flags(row, given) or _from_environment(row, environ)
        if found is not None:
            origins[name], values[name] = found
        else:
            origins[name] = DEFAULT
    if values.get("api_key_file"):
        keys = values.get("api_keys", ())
        values["api_keys"] = (*keys, *_read_keys(values["api_key_file"], origins["api_key_file"]))
        origins["api_keys"] = f"{origins['api_keys']} + {origins['api_key_file']}" if keys else origins["api_key_file"]
    return Loaded(Settings(**values), origins)


def _from_flags(row: Option, given: Given) -> tuple[str, Any] | None:
    # Every given flag is parsed, also one that gives way, so that a bad value is never passed over.
    found = [(flag, _parse_flag(flag, row, given[flag.name])) for flag in row.flags if flag.name in given]
    found = [(flag, value) for flag, value in found if value is not msgspec.UNSET]
    own = [(flag, value) for flag, value in found if not flag.alias] or found
    if not own:
        return None
    for flag, value in own[1:]:
        if value != own[0][1]:
            raise BadSetting(f"{own[0][0].name} and {flag.name} contradict each other: give one of them")
    return own[0][0].name, own[0][1]


def _parse_flag(flag: Flag, row: Option, text: str | Sequence[str]) -> Any:
    kind = flag.kind or row.kind
    if isinstance(text, str):
        return _parse(kind, flag.name, text, row)
    return tuple(_parse(kind, flag.name, one, row) for one in text)


def _from_environment(row: Option, environ: Mapping[str, str]) -> tuple[str, Any] | None:
    for env in row.env:
        text = environ.get(env.name, "")
        if not text:
            continue
        kind = env.kind or row.kind
        if row.repeat:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return env.name, tuple(_parse(kind, env.name, part, row) for part in parts)
        return env.name, _parse(kind, env.name, text, row)
    return None


def _parse(kind: Kind, source: str, text: str, row: Option) -> Any:
    try:
        return kind.parse(text)
    except BadValue:
        shown = "the value given" if row.secret else repr(text)
        raise BadSetting(f"{source}: {shown} is not accepted; it takes {kind.accepts}") from None


def _read_keys(path: Path, source: str) -> tuple[str, ...]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{source}: {str(path)!r} can't be read ({error}); it takes a readable file of keys") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
    if not keys:
        raise BadSetting(f"{source}: {str(path)!r} holds no key; it takes a file with one key a line")
    return keys
