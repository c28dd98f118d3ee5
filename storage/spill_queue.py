"""What waits to be written: at most one operation a key, removals first, else in order of arrival, bounded by bytes.

A removal that waited behind the puts would leave its pages to nobody meanwhile, and the file would grow by the queue.
"""

from collections import OrderedDict
from itertools import islice

import msgspec

from mlxcel.ports import Parts


class Put(msgspec.Struct, gc=False):
    """A piece to store once the log is durable past `seq`."""

    key: bytes
    seq: int
    parts: Parts
    nbytes: int
    queued_s: float


class Delete(msgspec.Struct, gc=False):
    """A piece to remove once the log is durable past `seq`."""

    key: bytes
    seq: int
    queued_s: float


Operation = Put | Delete


class SpillQueue:
    """The latest operation on a key replaces the one that waits. Not thread-safe: its owner holds a lock."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.queued_bytes = 0
        self._puts: OrderedDict[bytes, Put] = OrderedDict()
        self._deletes: OrderedDict[bytes, Delete] = OrderedDict()
        self._rest_until_s = 0.0

    def __len__(self) -> int:
        return len(self._puts) + len(self._deletes)

    def put(self, put: Put) -> bool:
        """Queue a piece; False when it doesn't fit (nothing is queued then).

        Keys address content, so a piece that waits already keeps its place and bytes, and waits for the later record.
        """
        waiting = self._puts.get(put.key)
        if waiting is not None:
            waiting.seq = max(waiting.seq, put.seq)
            return True
        if self.queued_bytes + put.nbytes > self.capacity_bytes:
            return False
        self._deletes.pop(put.key, None)
        self._puts[put.key] = put
        self.queued_bytes += put.nbytes
        return True

    def delete(self, delete: Delete) -> Put | None:
        """Queue a removal; returns the put that it makes void, if one waited."""
        replaced = self._puts.pop(delete.key, None)
        self._deletes.pop(delete.key, None)
        self._deletes[delete.key] = delete
        if replaced is not None:
            self.queued_bytes -= replaced.nbytes
        return replaced

    def restore_deletes(self, deletes: list[Delete], rest_until_s: float) -> None:
        """Put back removals that could not be made, unless their key has been queued since; nothing is due before
        `rest_until_s`, so that a disk in trouble isn't pressed."""
        self._rest_until_s = rest_until_s
        for delete in reversed(deletes):
            if delete.key not in self._deletes and delete.key not in self._puts:
                self._deletes[delete.key] = delete
                self._deletes.move_to_end(delete.key, last=False)

    def oldest_s(self) -> float:
        """Return when the first waiting operation was queued. The queue must not be empty."""
        firsts: list[Operation] = [*islice(self._puts.values(), 1), *islice(self._deletes.values(), 1)]
        return max(min(first.queued_s for first in firsts), self._rest_until_s)

    def take(self, limit_bytes: int, limit_count: int) -> list[Operation]:
        """Remove and return removals, then puts of `limit_bytes` (at least one), at most `limit_count` in all.

        The bytes stay counted until `release`, since the pieces are still held.
        """
        group: list[Operation] = []
        while self._deletes and len(group) < limit_count:
            group.append(self._deletes.popitem(last=False)[1])
        total = 0
        while self._puts and len(group) < limit_count:
            put = next(iter(self._puts.values()))
            if total and total + put.nbytes > limit_bytes:
                break
            total += put.nbytes
            group.append(put)
            del self._puts[put.key]
        return group

    def release(self, nbytes: int) -> None:
        """Stop counting bytes of pieces that were taken."""
        self.queued_bytes -= nbytes
