"""Opening an LMDB environment safely, and what its errors mean."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from storage.codec.piece import MAX_RAW_BYTES
from storage.errors import SchemaNewerThanCode, StoreDamaged, StoreFull, StoreUnavailable
from storage.private import DIRECTORY_MODE, FILE_MODE, make_private_directory

GIB = 1 << 30
DATA_FILE = "data.mdb"
_DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PanicError,
    lmdb.CursorFullError,
)


class TierOptions(msgspec.Struct, frozen=True):
    """Sizes in bytes. The map starts at `map_bytes` and doubles up to `max_map_bytes`; it costs addresses, not disk.

    `reserve_bytes` of the volume are never used: a write that would touch them is refused. `max_raw_bytes`: a piece that
    claims to decode to more is corrupt.
    """

    map_bytes: int = GIB
    max_map_bytes: int = 96 * GIB
    reserve_bytes: int = GIB
    max_readers: int = 512
    max_raw_bytes: int = MAX_RAW_BYTES


class SetAside(msgspec.Struct, frozen=True):
    """A damaged environment that was renamed to `path`."""

    path: Path
    reason: str


@contextlib.contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Turn LMDB's errors into storage's: StoreFull, StoreDamaged or StoreUnavailable, naming file and cause."""
    try:
        yield
    except lmdb.Error as error:
        text = f"{directory / DATA_FILE}: {error}"
        if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or os.strerror(errno.ENOSPC) in str(error):
            raise StoreFull(text) from error
        if isinstance(error, _DAMAGE):
            raise StoreDamaged(text) from error
        raise StoreUnavailable(text) from error
    except OSError as error:
        raise StoreUnavailable(f"{directory}: {error.strerror}") from error


def open_environment(directory: Path, options: TierOptions, read_only: bool) -> Any:
    """Open the environment in `directory` (made private, created when absent and not `read_only`).

    No write map: with one, a full disk is a bus error, and it is not faster. Readahead stays on: without it a cold read
    faults page by page, 7 to 30 times slower. `metasync=False` with `sync=True`: LMDB flushes a transaction's pages but
    leaves its meta page to the next one, so that a power cut takes at most the last transaction and never the
    structure. `sync=False` would put the structure at risk for 0.50 instead of 0.36 GB/s to the medium, and with groups
    of up to 32 MiB a transaction the wait for the device is the larger part in both.

    Raises StoreDamaged, StoreUnavailable.
    """
    with translated(directory):
        if not read_only:
            make_private_directory(directory)
        data = directory / DATA_FILE
        size = data.stat().st_size if data.exists() else 0
        lockable = not read_only or os.access(directory, os.W_OK)
        env = lmdb.open(
            str(directory),
            map_size=_whole_pages(max(options.map_bytes, size + size // 4)),
            max_dbs=8,
            max_readers=options.max_readers,
            readonly=read_only,
            create=not read_only,
            metasync=False,
            sync=True,
            writemap=False,
            readahead=True,
            lock=lockable,  # without a writable lock file nobody can be writing either
            mode=FILE_MODE,
        )
    try:
        with translated(directory):
            if lockable:
                env.reader_check()  # slots of killed readers
            fill_up_short_file(env, data, read_only)
    except BaseException:
        env.close()
        raise
    return env


def fill_up_short_file(env: Any, data: Path, read_only: bool) -> None:
    """Extend a truncated data file with a hole to the size its meta page claims.

    Reading a mapped page beyond the end of the file kills the process (SIGBUS). A page of zeros is found: by LMDB in
    its own pages, by our checksum in pieces. Raises StoreDamaged when the environment is read-only.
    """
    need = claimed_bytes(env)
    size = data.stat().st_size
    if size >= need:
        return
    if read_only:
        raise StoreDamaged(f"{data}: {size} bytes, {need} belong there")
    os.truncate(data, need)


def claimed_bytes(env: Any) -> int:
    """Return the file size that the newest meta page speaks of."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"]) if env.info()["last_txnid"] else 0


def set_aside(directory: Path) -> Path:
    """Rename a damaged environment to `<name>.damaged-<n>` with the first free number; returns the new path."""
    number = 1
    while (target := directory.with_name(f"{directory.name}.damaged-{number}")).exists():
        number += 1
    os.rename(directory, target)
    target.chmod(DIRECTORY_MODE)
    return target


def newer_schema(directory: Path, found: int, known: int) -> SchemaNewerThanCode:
    """Return the exception for an environment of a newer program."""
    return SchemaNewerThanCode(f"store {directory}", found, known)


def _whole_pages(nbytes: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-nbytes // page) * page
