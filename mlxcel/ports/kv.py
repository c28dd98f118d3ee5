"""KV as bytes, and the tiers that hold it: what storage implements and the service calls."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec


class Part(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a stored piece, as raw C-contiguous bytes.

    `dtype` is mlx's name ("float32", "bfloat16", "uint32", ...); `shape` its dimensions; `data` a buffer of exactly
    `prod(shape) * itemsize` bytes (bytes, bytearray or a read-only memoryview of format "B").
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


Parts = Sequence[Part]


class PieceMissing(Exception):
    """The tier holds nothing under that key. `key` names it."""

    key: bytes = b""


class PieceCorrupt(Exception):
    """The tier holds bytes under `key` that fail their checksum, length or header. The reason is the message."""

    key: bytes = b""


class TierUnavailable(Exception):
    """The tier can't be read or written now (full, read-only, I/O error). The message names file and cause."""


class DiskTier(Protocol):
    """A dumb map from a 32-byte key to the parts of one piece. No opinion about eviction. Thread-safe."""

    def inventory(self) -> dict[bytes, int]:
        """Return key -> stored bytes of every committed piece; reads the index, not the data."""
        ...

    def write_group(self, puts: Sequence[tuple[bytes, Parts]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        """Commit puts and deletes in one transaction; returns key -> stored bytes. Raises TierUnavailable."""
        ...

    def read(self, key: bytes) -> list[Part]:
        """Return the verified, decompressed parts. Raises PieceMissing, PieceCorrupt, TierUnavailable."""
        ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class SpillOutcome(msgspec.Struct, frozen=True):
    """What became of one queued piece: `stored_bytes` when committed, else `error` (a sentence)."""

    key: bytes
    stored_bytes: int = 0
    error: str = ""


class SpillWriter(Protocol):
    """Write-behind: one thread that owns writes to the disk tier; a bounded queue."""

    def submit(self, seq: int, key: bytes, parts: Parts, nbytes: int) -> bool:
        """Queue a piece; False when the queue is full (nothing is queued). Commits only once the log is durable past `seq`."""
        ...

    def delete(self, seq: int, keys: Iterable[bytes]) -> None: ...

    def queued_bytes(self) -> int: ...

    def set_paced(self, paced: bool) -> None:
        """True while something decodes: write slowly. False: flat out."""
        ...

    def flush(self, timeout_s: float) -> bool: ...

    def close(self, timeout_s: float) -> bool: ...


class Restorer(Protocol):
    """Reads, verifies and decompresses pieces on its own threads."""

    def start(
        self,
        keys: Sequence[bytes],
        arrived: Callable[[int, list[Part], Callable[[], None]], None],
        done: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Read all keys. From other threads `arrived(index, parts, taken)` is called for each key, in any order, and then
        `done` once, with the first fault (as `key` the key in question) or None. Returns a cancel function.

        `taken` must be called when the parts are no longer needed: only so many wait at a time.
        """
        ...

    def close(self) -> None: ...
