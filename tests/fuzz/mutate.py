"""Spoiling valid data: bytes are flipped, cut, doubled and filled; values of nested lists and maps change type and size."""

import random
from typing import Any

ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, float("nan"), float("inf"), "", "x", "\ud7ff" * 40,
    b"", b"\0" * 33, [], [[]], {}, {"a": 1}, ["__reduce__", "os.system"],
]  # fmt: skip


def spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with one to four changes."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(6):
            case 0 if raw:
                raw[at % len(raw)] ^= 1 << rng.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                del raw[at : at + rng.randint(1, 40)]
            case 3:
                raw[at:at] = rng.randbytes(rng.randint(1, 40))
            case 4:
                raw[at:at] = raw[max(0, at - rng.randint(1, 60)) : at]
            case 5:
                raw[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + bytes(7), b"\0\0\0\0\xff\xff\xff\xff"))
    return bytes(raw)


def spoil_value(rng: random.Random, value: Any, changes: int = 1) -> Any:
    """Return a copy of nested lists and maps with `changes` places replaced, dropped, doubled or nudged."""
    for _ in range(changes):
        value = _spoil(rng, value)
    return value


def _spoil(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        rest = list(value)
        match rng.randrange(12):
            case 0:
                del rest[at]
            case 1:
                rest.insert(at, rest[at])
            case _:
                rest[at] = _spoil(rng, rest[at])
        return rest
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value, key=repr))
        rest = dict(value)
        if rng.random() < 0.15:
            del rest[key]
        else:
            rest[key] = _spoil(rng, rest[key])
        return rest
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 7, -value * 2))
    if isinstance(value, bytes) and value and rng.random() < 0.7:
        return spoil_bytes(rng, value)
    return rng.choice(ODD)
