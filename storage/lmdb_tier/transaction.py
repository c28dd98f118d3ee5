"""The one write transaction that commits a group, and walking the index."""

from collections.abc import Iterator, Sequence
from typing import Any

from storage.codec.piece import Encoded
from storage.lmdb_tier.layout import CHUNK_BYTES, KEY_BYTES, chunk_key, pack_entry, unpack_entry


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


def index_items(txn: Any, index: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, entry) of the index in key order, as copies."""
    for key, value in txn.cursor(index):
        yield bytes(key), bytes(value)


def _remove(txn: Any, index: Any, data: Any, key: bytes) -> int:
    """Delete a piece if it is there; returns its stored bytes. Chunks are found by their key, so that a damaged index
    entry does not leave them behind."""
    value = txn.pop(key, db=index)
    if value is None:
        return 0
    with txn.cursor(data) as cursor:
        found = cursor.set_range(key)
        while found and bytes(cursor.key()).startswith(key):
            found = cursor.delete()
    entry = unpack_entry(key, bytes(value))
    return entry.stored_bytes if entry else 0
