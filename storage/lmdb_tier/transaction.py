"""What is done inside a transaction: committing a group, copying a piece out, walking the index."""

import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import lmdb
import numpy as np

from storage.codec.piece import Encoded
from storage.codec.planes import Bytes
from storage.errors import StoredPieceCorrupt
from storage.lmdb_tier.layout import CHUNK_BYTES, KEY_BYTES, IndexEntry, chunk_key, pack_entry, unpack_entry

_KEEP_BYTES = 64 << 20


def apply_group(
    env: Any, index: Any, data: Any, puts: Sequence[tuple[bytes, Encoded]], deletes: Sequence[bytes]
) -> int:
    """Commit deletes, then puts, in one transaction; returns by how much the stored bytes grew.

    Raises lmdb.Error, also at the commit; nothing has changed then.
    """
    delta = 0
    with env.begin(write=True) as txn:
        for key in deletes:
            delta -= _remove(txn, index, data, key)
        for key, piece in puts:
            assert len(key) == KEY_BYTES, f"a key has {KEY_BYTES} bytes, not {len(key)}"
            delta += len(piece.data) - _remove(txn, index, data, key)
            for number, start in enumerate(range(0, len(piece.data), CHUNK_BYTES)):
                txn.put(chunk_key(key, number), piece.data[start : start + CHUNK_BYTES], db=data)
            txn.put(key, pack_entry(key, len(piece.data)), db=index)
    return delta


def pages_written(sizes: Sequence[int], deletes: int) -> int:
    """Return how many pages a commit wrote, at most: values in whole pages with a 16-byte header each, two B-tree leaves
    a piece (LMDB copies a leaf before changing it), and the trees' inner pages, the free list and the meta page once.
    """
    values = sum(
        -(-(min(CHUNK_BYTES, size - start) + 16) // 4096) for size in sizes for start in range(0, size, CHUNK_BYTES)
    )
    return values + 2 * (len(sizes) + deletes) + 8


def begin_reading(env: Any) -> Any:
    """Begin a read transaction; slots of killed readers are given free when the table is full. Raises lmdb.Error."""
    try:
        return env.begin(buffers=True)
    except lmdb.ReadersFullError:
        env.reader_check()
        return env.begin(buffers=True)


def index_items(txn: Any, index: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, entry) of the index in key order, as copies."""
    for key, value in txn.cursor(index):
        yield bytes(key), bytes(value)


def keys_from(txn: Any, index: Any, key: bytes, count: int) -> list[bytes]:
    """Return up to `count` different keys of the index in order from `key` on, going round at the end."""
    with txn.cursor(index) as cursor:
        after = islice(cursor.iternext(values=False), count) if cursor.set_range(key) else ()
        found = [bytes(one) for one in after]
        before = islice(cursor.iternext(values=False), count - len(found)) if cursor.first() else ()
        return found + [one for one in map(bytes, before) if one < key]


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.buffer: Bytes = np.empty(0, np.uint8)


def _own_memory(nbytes: int) -> Bytes:
    """Return memory of this thread's own, valid until it asks again: fresh pages cost more than copying into them."""
    if nbytes > _KEEP_BYTES:
        return np.empty(nbytes, np.uint8)
    if _mine.buffer.size < nbytes:
        _mine.buffer = np.empty(nbytes, np.uint8)
    return _mine.buffer[:nbytes]


_mine = _PerThread()


def copy_chunks(txn: Any, data: Any, key: bytes, entry: IndexEntry) -> memoryview:
    """Copy a piece's chunks out of the map. numpy copies without the GIL, which a page fault would otherwise hold.

    The copy is good until this thread makes its next.
    """
    copy = _own_memory(entry.stored_bytes)
    at = 0
    for number in range(entry.chunks):
        chunk = txn.get(chunk_key(key, number), db=data)
        if chunk is None or at + len(chunk) > entry.stored_bytes:
            raise StoredPieceCorrupt(key, f"chunk {number} of {entry.chunks} is missing or too long")
        np.copyto(copy[at : at + len(chunk)], np.frombuffer(chunk, np.uint8))
        at += len(chunk)
    if at != entry.stored_bytes:
        raise StoredPieceCorrupt(key, f"{at} of {entry.stored_bytes} bytes are there")
    return copy.data.toreadonly()


def _remove(txn: Any, index: Any, data: Any, key: bytes) -> int:
    """Delete a piece if it is there; returns its stored bytes. Chunks are found by their key, so that a damaged or
    lost index entry does not leave them behind."""
    value = txn.pop(key, db=index)
    with txn.cursor(data) as cursor:
        found = cursor.set_range(key)
        while found and bytes(cursor.key()).startswith(key):
            found = cursor.delete()
    entry = unpack_entry(key, bytes(value)) if value is not None else None
    return entry.stored_bytes if entry else 0
