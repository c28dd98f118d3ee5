"""What waits to be written: at most one operation a key, in order of arrival, bounded by bytes."""

from collections import OrderedDict

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
        self._waiting: OrderedDict[bytes, Operation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, put: Put) -> bool:
        """Queue a piece; False when it doesn't fit (nothing is queued then).

        Keys address content, so a piece that waits already keeps its place and bytes, and waits for the later record.
        """
        waiting = self._waiting.get(put.key)
        if isinstance(waiting, Put):
            waiting.seq = max(waiting.seq, put.seq)
            return True
        if self.queued_bytes + put.nbytes > self.capacity_bytes:
            return False
        self._waiting.pop(put.key, None)
        self._waiting[put.key] = put
        self.queued_bytes += put.nbytes
        return True

    def delete(self, delete: Delete) -> Put | None:
        """Queue a removal; returns the put that it makes void, if one waited."""
        replaced = self._waiting.pop(delete.key, None)
        self._waiting[delete.key] = delete
        if not isinstance(replaced, Put):
            return None
        self.queued_bytes -= replaced.nbytes
        return replaced

    def restore_deletes(self, deletes: list[Delete]) -> None:
        """Put back removals that could not be made, before everything else, unless their key has been queued since."""
        for delete in reversed(deletes):
            if delete.key not in self._waiting:
                self._waiting[delete.key] = delete
                self._waiting.move_to_end(delete.key, last=False)

    def oldest_s(self) -> float:
        """Return when the first waiting operation was queued. The queue must not be empty."""
        return next(iter(self._waiting.values())).queued_s

    def take(self, limit_bytes: int, limit_count: int) -> list[Operation]:
        """Remove and return operations from the front: `limit_bytes` of puts (at least one), at most `limit_count`.

        The bytes stay counted until `release`, since the pieces are still held.
        """
        group: list[Operation] = []
        total = 0
        while self._waiting and len(group) < limit_count:
            operation = next(iter(self._waiting.values()))
            nbytes = operation.nbytes if isinstance(operation, Put) else 0
            if total and nbytes and total + nbytes > limit_bytes:
                break
            total += nbytes
            group.append(operation)
            del self._waiting[operation.key]
        return group

    def release(self, nbytes: int) -> None:
        """Stop counting bytes of pieces that were taken."""
        self.queued_bytes -= nbytes
