"""The disk tier: a map from a 32-byte key to a piece, in LMDB."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb

from migrations.runner import Step
from mlxcel.ports import Part, Parts
from storage.codec.piece import Encoded, decode, encode
from storage.errors import (
    StoreDamaged,
    StoredPieceCorrupt,
    StoredPieceMissing,
    StoreFull,
    StoreUnavailable,
    WrongProcess,
)
from storage.lmdb_tier import transaction
from storage.lmdb_tier.compact import compact
from storage.lmdb_tier.environment import (
    DATA_FILE,
    SetAside,
    TierOptions,
    claimed_bytes,
    open_environment,
    set_aside,
    translated,
)
from storage.lmdb_tier.gate import Gate
from storage.lmdb_tier.layout import KEY_BYTES, unpack_entry
from storage.lmdb_tier.schema import bring_up_to_date
from storage.lmdb_tier.watch import check_reserve, file_fault

_log = logging.getLogger(__name__)


class LmdbTier:
    """Implements ports.DiskTier. Open it with `LmdbTier.open`, in the process that uses it (not before a fork).

    A piece is visible once its transaction is committed, with all its chunks. Read transactions live for the copy of
    the bytes only: an open one keeps every page freed since from being used again.

    When the data file is removed, replaced or cut under the process, the next use opens what is there, or begins anew:
    what was stored is then missing, not unavailable, so that its owner can let go of it and store again.
    """

    set_aside: SetAside | None = None
    migrated: tuple[Step, ...] = ()

    def __init__(self, directory: Path, options: TierOptions, env: Any, read_only: bool) -> None:
        self.directory, self._options, self._read_only = directory, options, read_only
        self._data_path = directory / DATA_FILE
        self._pid = os.getpid()
        self._gate = Gate()
        self._writing = threading.Lock()
        self._closed = False
        self._written_bytes = 0
        self.losses = 0  # times that the file was lost under this process
        self._use(env)
        with translated(directory):
            self._live_bytes = sum(self._sizes().values())

    def _use(self, env: Any) -> None:
        with translated(self.directory):
            self._env = env
            self._index = env.open_db(b"index", create=False)
            self._data = env.open_db(b"data", create=False)
            self._inode = self._data_path.stat().st_ino
            self._claimed = claimed_bytes(env)
            self._page_bytes = int(env.stat()["psize"])
            self._map_bytes = int(env.info()["map_size"])

    @classmethod
    def open(cls, directory: Path, options: TierOptions | None = None, *, read_only: bool = False) -> "LmdbTier":
        """Open or create the environment in `directory`, bringing it to the present schema.

        An environment that can't be opened is set aside (`tier.set_aside` says where and why) and a new one begun,
        unless `read_only`. Raises SchemaNewerThanCode (nothing is changed), StoreUnavailable, and StoreDamaged when
        `read_only`.
        """
        options = options or TierOptions()
        try:
            return cls._open_once(directory, options, read_only)
        except StoreDamaged as error:
            if read_only:
                raise
            with translated(directory):
                moved = SetAside(set_aside(directory), str(error))
            tier = cls._open_once(directory, options, read_only)
            tier.set_aside = moved
            return tier

    @classmethod
    def _open_once(cls, directory: Path, options: TierOptions, read_only: bool) -> "LmdbTier":
        env = open_environment(directory, options, read_only)
        try:
            with translated(directory):
                taken = bring_up_to_date(env, directory, read_only)
            tier = cls(directory, options, env, read_only)
        except BaseException:
            env.close()
            raise
        tier.migrated = tuple(taken)
        return tier

    # ---------------------------------------------------------------- reading

    def inventory(self) -> dict[bytes, int]:
        """Return key -> stored bytes of every piece. A piece whose index entry is damaged counts 0 bytes; reading it
        says PieceCorrupt and deleting it works. Raises StoreUnavailable."""
        self._check_usable()
        with translated(self.directory):
            return self._sizes()

    def read(self, key: bytes) -> list[Part]:
        """Return the verified parts. Raises StoredPieceMissing, StoredPieceCorrupt, StoreUnavailable."""
        return decode(key, self.read_encoded(key), self._options.max_raw_bytes)

    def read_encoded(self, key: bytes) -> memoryview:
        """Return the stored bytes, not verified, in memory that this thread's next read uses again. Raises as `read`."""
        self._check_usable()
        with translated(self.directory), self._reading() as txn:
            value = txn.get(key, db=self._index)
            if value is None:
                raise StoredPieceMissing(key)
            entry = unpack_entry(key, bytes(value))
            if entry is None:
                raise StoredPieceCorrupt(key, "the index entry is damaged")
            return transaction.copy_chunks(txn, self._data, key, entry)

    def keys_from(self, key: bytes, count: int) -> list[bytes]:
        """Return up to `count` pieces' keys in order from `key` on, going round at the end. Raises StoreUnavailable."""
        self._check_usable()
        with translated(self.directory), self._reading() as txn:
            return transaction.keys_from(txn, self._index, key, count)

    def data_keys(self) -> set[bytes]:
        """Return the keys that have chunks, whether the index knows them or not. Raises StoreUnavailable."""
        self._check_usable()
        with translated(self.directory), self._reading() as txn:
            return {bytes(key)[:KEY_BYTES] for key in txn.cursor(self._data).iternext(keys=True, values=False)}

    # ---------------------------------------------------------------- writing

    def write_group(self, puts: Sequence[tuple[bytes, Parts]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        return self.write_encoded([(key, encode(key, parts)) for key, parts in puts], deletes)

    def write_encoded(self, puts: Sequence[tuple[bytes, Encoded]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        """Commit deletes, then puts, in one transaction; returns key -> stored bytes of the puts.

        All or nothing. When the map is full it grows and the group is tried again. Raises StoreFull (map at its limit,
        or the volume's reserve would be touched), StoreUnavailable.
        """
        self._check_usable()
        if self._read_only:
            raise StoreUnavailable(f"{self.directory}: opened for reading")
        need = sum(len(piece.data) for _, piece in puts)
        with self._writing:
            with translated(self.directory):
                check_reserve(self._data_path, self._live_bytes, need, self._options.reserve_bytes)
            while True:
                try:
                    with translated(self.directory):
                        delta = transaction.apply_group(self._env, self._index, self._data, puts, deletes)
                    break
                except StoreFull as error:
                    if not isinstance(error.__cause__, lmdb.MapFullError):
                        raise
                    self._grow(need, error)
                except StoreDamaged as error:
                    if isinstance(error.__cause__, lmdb.PanicError):
                        self._reopen()
                    raise
            self._live_bytes += delta
            self._written_bytes += self._page_bytes * transaction.pages_written(
                [len(piece.data) for _, piece in puts], len(deletes)
            )
            # Pages that were allocated and given back within a transaction may lie beyond the end of the file.
            self._claimed = min(claimed_bytes(self._env), self._data_path.stat().st_size)
        return {key: len(piece.data) for key, piece in puts}

    def sync(self) -> None:
        """Make the last transaction's meta page durable too. Raises StoreUnavailable."""
        self._check_usable()
        with self._writing, translated(self.directory):
            self._env.sync(True)

    def close(self) -> None:
        """Close; a second call does nothing. In a forked child it only forgets the environment."""
        if self._closed or os.getpid() != self._pid:
            self._closed = True
            return
        with self._writing, self._gate.exclusive():
            self._closed = True
            self._env.close()

    def compact(self) -> tuple[int, int]:
        """Shrink the file to its live pages; returns its size before and after, bytes. Reads and writes wait meanwhile.

        Needs room for the copy beside. Raises StoreUnavailable; the tier then goes on with the file as it was.
        """
        self._check_usable()
        if self._read_only:
            raise StoreUnavailable(f"{self.directory}: opened for reading")
        with self._writing, self._gate.exclusive():
            self._env.close()
            try:
                return compact(self.directory, self._options)
            finally:
                self._use(open_environment(self.directory, self._options, read_only=False))

    def stats(self) -> dict[str, int]:
        """Return bytes: `file`, `live` (stored pieces), `map`, `written` (pages that this process' commits wrote)."""
        with translated(self.directory):
            size = self._data_path.stat().st_size
        return {
            "file": size,
            "live": self._live_bytes,
            "map": self._map_bytes,
            "written": self._written_bytes,
        }

    # ---------------------------------------------------------------- inside

    def _sizes(self) -> dict[bytes, int]:
        with self._reading() as txn:
            sizes = {}
            for key, value in transaction.index_items(txn, self._index):
                entry = unpack_entry(key, value)
                sizes[key] = entry.stored_bytes if entry else 0
            return sizes

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        """A read transaction, ended on the way out. Another process may have grown the map: then take its size over."""
        while True:
            with self._gate.shared():
                if self._closed:
                    raise StoreUnavailable(f"{self.directory}: closed")
                try:
                    txn = transaction.begin_reading(self._env)
                except lmdb.MapResizedError:
                    txn = None
                if txn is not None:
                    try:
                        yield txn
                    finally:
                        txn.abort()
                    return
            with self._gate.exclusive():
                self._env.set_mapsize(0)

    def _grow(self, need: int, cause: StoreFull) -> None:
        old = self._env.info()["map_size"]
        new = min(self._options.max_map_bytes, max(2 * old, old + 2 * need))
        if new <= old:
            raise cause
        with self._gate.exclusive(), translated(self.directory):
            self._env.set_mapsize(new)
            self._map_bytes = new

    def _reopen(self) -> None:
        """After a failed write of the meta page LMDB refuses everything until the environment is opened anew."""
        with self._gate.exclusive():
            self._env.close()
            self._use(open_environment(self.directory, self._options, read_only=False))

    def _check_usable(self) -> None:
        """Raise unless this process opened the tier. A file that is not the one that was opened is opened anew."""
        if os.getpid() != self._pid:
            raise WrongProcess(f"{self.directory}: opened by process {self._pid}, used by {os.getpid()}")
        if self._closed:
            raise StoreUnavailable(f"{self.directory}: closed")
        if file_fault(self._data_path, self._inode, self._claimed):
            self._begin_again()

    def _begin_again(self) -> None:
        """Let go of a file that is lost and open what is there now. Raises StoreUnavailable, also when read-only."""
        with self._writing:
            fault = file_fault(self._data_path, self._inode, self._claimed)
            if not fault:  # another thread was first
                return
            if self._read_only:
                raise StoreUnavailable(fault)
            self.losses += 1
            _log.error("disk tier: %s; what it held is lost, a new one is begun", fault)
            with self._gate.exclusive(), translated(self.directory):
                self._env.close()
                if "cut to" in fault:
                    set_aside(self.directory)
                fresh = LmdbTier.open(self.directory, self._options)
                self._use(fresh._env)
                self._live_bytes = fresh._live_bytes
