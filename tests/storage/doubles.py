"""A disk tier in memory and a wrapper that injects faults, both held to the same rules as the real one."""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from mlxcel.ports import Part, Parts
from storage.codec.piece import Encoded, decode, encode
from storage.errors import StoredPieceMissing, StoreFull, StoreUnavailable


def key_of(number: int) -> bytes:
    """Return a 32-byte key that differs early and late."""
    return number.to_bytes(4, "big") + bytes(24) + number.to_bytes(4, "little")


def some_parts(seed: int, elements: int = 64, dtype: str = "float32") -> list[Part]:
    """Make two float tensors and a small integer one, different for each seed."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(2 * elements, dtype=np.float32)
    if dtype == "bfloat16":
        words = (values.view(np.uint32) >> 16).astype(np.uint16)
        halves = [words[:elements].tobytes(), words[elements:].tobytes()]
    else:
        halves = [values[:elements].tobytes(), values[elements:].tobytes()]
    return [
        Part("0.k", dtype, (1, elements), halves[0]),
        Part("0.v", dtype, (1, elements), halves[1]),
        Part("offset", "int32", (1,), np.int32(seed).tobytes()),
    ]


def plain(parts: Parts) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return parts as values that compare by content."""
    return [(part.name, part.dtype, tuple(part.shape), bytes(part.data)) for part in parts]


class MemoryDisk:
    """A DiskTier in a dict."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._closed = False

    def inventory(self) -> dict[bytes, int]:
        self._check()
        with self._lock:
            return {key: len(data) for key, data in self.stored.items()}

    def write_group(self, puts: Sequence[tuple[bytes, Parts]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        return self.write_encoded([(key, encode(key, parts)) for key, parts in puts], deletes)

    def write_encoded(self, puts: Sequence[tuple[bytes, Encoded]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        self._check()
        with self._lock:
            for key in deletes:
                self.stored.pop(key, None)
            for key, piece in puts:
                self.stored[key] = bytes(piece.data)
        return {key: len(piece.data) for key, piece in puts}

    def read(self, key: bytes) -> list[Part]:
        self._check()
        with self._lock:
            data = self.stored.get(key)
        if data is None:
            raise StoredPieceMissing(key)
        return decode(key, data)

    def sync(self) -> None:
        self._check()

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailable("closed")


class FaultyDisk(MemoryDisk):
    """A memory tier on which the next write or read can be made to fail.

    Before each write `before_write` is called, before each read `before_read`; either may raise, or wait (a slow disk).
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_write: Callable[[], None] = lambda: None
        self.before_read: Callable[[bytes], None] = lambda key: None
        self.groups: list[tuple[list[bytes], list[bytes]]] = []

    def write_encoded(self, puts: Sequence[tuple[bytes, Encoded]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        self.before_write()
        self.groups.append(([key for key, _ in puts], list(deletes)))
        return super().write_encoded(puts, deletes)

    def read(self, key: bytes) -> list[Part]:
        self.before_read(key)
        return super().read(key)

    def flip(self, key: bytes, position: int) -> None:
        """Flip one bit of what is stored."""
        data = bytearray(self.stored[key])
        data[position % len(data)] ^= 1 << (position % 8)
        self.stored[key] = bytes(data)

    def tear(self, key: bytes, length: int) -> None:
        """Keep only the first bytes of what is stored."""
        self.stored[key] = self.stored[key][:length]

    def fail_writes(self, times: int) -> None:
        """Let the next writes find the disk full."""
        left = [times]

        def full() -> None:
            if left[0]:
                left[0] -= 1
                raise StoreFull("no space left (injected)")

        self.before_write = full
