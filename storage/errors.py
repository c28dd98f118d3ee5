"""Operating faults of storage, as one tree.

Exception
+-- StorageError
    +-- DirectoryLocked              another process owns the data directory (its pid)
    +-- NewerThanCode                data written by a newer program; nothing was touched
    |   +-- LogNewerThanCode
    |   +-- SchemaNewerThanCode
    +-- LogError
    |   +-- LogCorrupt               a record or segment is damaged (file, offset, reason)
    |   +-- LogUnavailable           the log can't be written (disk full, I/O error, closed)
    +-- StoreUnavailable             (also ports.TierUnavailable) the disk tier can't be read or written now
    |   +-- StoreFull                no room in the map, or the volume's reserve would be touched
    |   +-- StoreDamaged             LMDB says that its own structure is broken
    |   +-- WrongProcess             used in a forked child
    +-- StoredPieceMissing           (also ports.PieceMissing) with the key
    +-- StoredPieceCorrupt           (also ports.PieceCorrupt) with the key and the reason
"""

from pathlib import Path

from mlxcel import ports
from mlxcel.ports import PieceCorrupt, PieceMissing, TierUnavailable


class StorageError(Exception):
    """Root of every fault that storage raises."""


class DirectoryLocked(StorageError):
    """Another process owns the data directory."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"data directory {directory} is in use by {owner}")
        self.directory = directory
        self.pid = pid


class NewerThanCode(StorageError):
    """The data were written by a newer program; nothing was changed."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(f"{what} has format version {found}; this program knows versions up to {known}")
        self.found = found
        self.known = known


class LogNewerThanCode(NewerThanCode):
    """A log segment has a newer frame version."""


class SchemaNewerThanCode(NewerThanCode):
    """The LMDB environment has a newer schema version."""


class LogError(StorageError):
    """A fault of the event log."""


class LogCorrupt(LogError):
    """A damaged place that is not the tail of the last segment. Files are left as they are."""

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        super().__init__(f"{file}: byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class LogUnavailable(LogError, ports.LogUnavailable):
    """The log can't be written any more in this process; the reason is the message."""


class StoreUnavailable(StorageError, TierUnavailable):
    """The disk tier can't be read or written now."""


class StoreFull(StoreUnavailable):
    """No room: the map is at its limit or the volume's reserve would be touched."""


class StoreDamaged(StoreUnavailable):
    """LMDB found its own pages inconsistent."""


class WrongProcess(StoreUnavailable):
    """The environment was opened by another process (before a fork)."""


class StoredPieceMissing(StorageError, PieceMissing):
    """Nothing is stored under `key`."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"piece {key.hex()[:16]} is not stored")
        self.key = key


class StoredPieceCorrupt(StorageError, PieceCorrupt):
    """The bytes stored under `key` fail a check; `reason` says which."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"piece {key.hex()[:16]}: {reason}")
        self.key = key
        self.reason = reason
