"""How the text of a setting becomes a value, and what to say when it doesn't."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class BadValue(ValueError):
    """The text doesn't fit its kind. The kind's `accepts` says what would."""


class Kind(msgspec.Struct, frozen=True):
    """A parser together with words for it: `metavar` in the help, `accepts` in an error."""

    metavar: str
    accepts: str
    parse: Callable[[str], Any]


_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_BYTE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SECOND_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_BYTES = 1 << 62
MAX_ROWS = 256
_NAME_BYTES = 255  # of one file or directory, on every file system of ours


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise BadValue(text)


def _whole(text: str) -> int:
    # int() also takes "1_000", surrounding spaces and other scripts' digits; none is meant in a flag.
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII):
        raise BadValue(text)
    return int(text)


def integer(low: int, high: int | None = None, also: tuple[int, ...] = (), also_means: str = "") -> Kind:
    """Return a kind for whole numbers in [low, high], plus the special values `also`."""

    def parse(text: str) -> int:
        value = _whole(text)
        if value not in also and (value < low or (high is not None and value > high)):
            raise BadValue(text)
        return value

    span = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"
    return Kind("N", span + (f", or {also_means}" if also else ""), parse)


def number(low: float) -> Kind:
    """Return a kind for decimal numbers of at least `low`."""

    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII) or float(text) < low:
            raise BadValue(text)
        return float(text)

    return Kind("X", f"a decimal number of at least {low:g}", parse)


def choice(*words: str) -> Kind:
    """Return a kind for one of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise BadValue(text)
        return text

    return Kind("|".join(words), "one of " + ", ".join(words), parse)


def one_of(*numbers: int) -> Kind:
    """Return a kind for one of a few whole numbers."""

    def parse(text: str) -> int:
        value = _whole(text)
        if value not in numbers:
            raise BadValue(text)
        return value

    words = ", ".join(map(str, numbers))
    return Kind("|".join(map(str, numbers)), f"one of {words}" if len(numbers) > 1 else f"only {words}", parse)


def or_auto(kind: Kind) -> Kind:
    """Return a kind that also takes `auto`, which becomes None."""

    def parse(text: str) -> Any:
        return None if text == "auto" else kind.parse(text)

    return Kind(f"{kind.metavar}|auto", f"{kind.accepts}, or auto", parse)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,19})\s?([kmgt]?)(i?b)?", text.lower(), re.ASCII)
    if match is None:
        raise BadValue(text)
    value = int(match[1]) << _BYTE_UNITS[match[2]]
    if value > _MAX_BYTES:
        raise BadValue(text)
    return value


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", text.lower(), re.ASCII)
    if match is None:
        raise BadValue(text)
    return float(match[1]) * _SECOND_UNITS[match[2]]


def _seconds_above_zero(text: str) -> float:
    value = _seconds(text)
    if value <= 0:
        raise BadValue(text)
    return value


def _text(text: str) -> str:
    if not text.strip() or "\x00" in text:
        raise BadValue(text)
    return text


def _exactly_one(text: str) -> bool:
    return text == "1"


def _not_exactly_one(text: str) -> bool:
    return text != "1"


def _mebibytes(text: str) -> int:
    value = _whole(text)
    if value == -1:
        return _MAX_BYTES
    if value < 0 or value > _MAX_BYTES >> 20:
        raise BadValue(text)
    return value << 20


def _zero(text: str) -> msgspec.UnsetType:
    if _whole(text) != 0:
        raise BadValue(text)
    return msgspec.UNSET


def _reuse_switch(text: str) -> bool:
    """llama.cpp's variable holds a count of tokens; here any count above 0 switches the cache on, as a boolean does."""
    try:
        return _boolean(text)
    except BadValue:
        value = _whole(text)
        if value < 0:
            raise
        return value > 0


def _rows_or_auto(text: str) -> int | msgspec.UnsetType:
    value = _whole(text)
    if value == -1:
        return msgspec.UNSET
    if not 1 <= value <= MAX_ROWS:
        raise BadValue(text)
    return value


def _path(text: str) -> Path:
    try:
        path = Path(_text(text)).expanduser()
    except RuntimeError as fault:  # ~somebody, who is not known here
        raise BadValue(text) from fault
    if any(len(os.fsencode(part)) > _NAME_BYTES for part in path.parts):
        raise BadValue(text)
    return path


UNLIMITED_BYTES = _MAX_BYTES
BOOL = Kind("BOOL", "true or false (also 1/0, yes/no, on/off)", _boolean)
BYTES = Kind("BYTES", "a number of bytes, plain or with K, M, G or T (powers of 1024)", _bytes)
SECONDS = Kind("SECONDS", "a number of seconds, plain or with s, m, h or d", _seconds)
PERIOD = Kind("SECONDS", "a number of seconds above 0, plain or with s, m, h or d", _seconds_above_zero)
TEXT = Kind("TEXT", "a text that isn't empty", _text)
PATH = Kind("PATH", "a path of names of at most 255 bytes", _path)
MEBIBYTES = Kind("MIB", "a whole number of MiB, 0 (no cache) or -1 (no limit)", _mebibytes)
ONLY_ZERO = Kind("N", "0 only (reuse by shifting the context isn't offered; prefix reuse needs no flag)", _zero)
REUSE_SWITCH = Kind("BOOL", "true or false (also 1/0, yes/no, on/off), or a whole number of at least 0", _reuse_switch)
ROWS = integer(1, MAX_ROWS)
ROWS_OR_AUTO = Kind("N", f"a whole number from 1 to {MAX_ROWS}, or -1 for the default", _rows_or_auto)
SWITCH_ON = Kind("1", "1 switches it on, anything else does nothing", _exactly_one)
SWITCH_OFF = Kind("1", "1 switches it off, anything else does nothing", _not_exactly_one)
