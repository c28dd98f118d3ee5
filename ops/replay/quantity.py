"""Sizes and ranges as people write them: 1GiB, 512MB, capacity=1GiB..64GiB."""

import re

import msgspec

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1000, "kib": 1 << 10, "m": 10**6, "mb": 10**6, "mib": 1 << 20, "g": 10**9,
          "gb": 10**9, "gib": 1 << 30, "t": 10**12, "tb": 10**12, "tib": 1 << 40}  # fmt: skip
SWEEPABLE = ("capacity", "blocks", "ttl", "max-entries", "min-prefix")


class Sweep(msgspec.Struct, frozen=True):
    """One setting and the values to try, ascending. Capacity in bytes or blocks, ttl in seconds."""

    name: str
    values: list[int]


def parse_size(text: str) -> int:
    """Return bytes (or a plain number). Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is no size: write a number with KiB, MiB, GiB, TiB (or KB, MB, GB, TB)")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_sweep(text: str, points: int) -> Sweep:
    """Read NAME=LOW..HIGH (steps of equal ratio, both ends included) or NAME=A,B,C. Raises ValueError."""
    name, _, span = text.partition("=")
    if name not in SWEEPABLE or not span:
        raise ValueError(f"{text!r}: write one of {', '.join(SWEEPABLE)} as NAME=LOW..HIGH or NAME=A,B,C")
    if ".." not in span:
        return Sweep(name, sorted({parse_size(part) for part in span.split(",")}))
    low, high = (parse_size(part) for part in span.split("..", 1))
    if not 0 < low <= high:
        raise ValueError(f"{text!r}: the range must ascend from more than 0")
    steps = max(1, points - 1)
    values = {round(low * (high / low) ** (n / steps)) for n in range(steps + 1)}
    return Sweep(name, sorted(values))


def show_size(number: int) -> str:
    """Return bytes in the largest binary unit that leaves at least 1, with up to two decimals."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{number} B"


def show_value(name: str, value: int) -> str:
    """Return a swept value in words."""
    return show_size(value) if name == "capacity" else f"{value} s" if name == "ttl" else str(value)
