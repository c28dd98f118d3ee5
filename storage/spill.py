"""Write-behind: one thread that owns the writes to the disk tier."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from mlxcel.ports import DiskTier, EventLog, Parts, SpillOutcome, TierUnavailable
from storage.codec.piece import Encoded, encode
from storage.pace import Pace
from storage.priority import set_background, yield_to_foreground
from storage.spill_options import SpillOptions
from storage.spill_queue import Delete, Operation, Put, SpillQueue
from storage.trouble import Trouble

_log = logging.getLogger(__name__)
_GROUP_COUNT = 4096
_COUNTS = ("dropped", "stored", "failed", "deleted", "deletes_dropped", "raw_bytes", "stored_bytes")
_LOG_POLL_S = 0.25
_CLOSE_LOOK_S = 0.2  # how often an end looks whether it is to be quick
_RETRY_S = 1.0  # before a removal that failed is tried again


class EncodedTier(DiskTier, Protocol):
    """A disk tier that also takes pieces already encoded, so that encoding can happen on several threads."""

    def write_encoded(self, puts: Sequence[tuple[bytes, Encoded]], deletes: Sequence[bytes]) -> dict[bytes, int]: ...


class SpillThread:
    """Implements ports.SpillWriter.

    Every piece that `submit` took gets one outcome through `on_outcome`, called from this thread (or from `close`):
    stored, or an error; a piece submitted again while it waits shares the outcome of the first. One that is deleted while
    it waits gets none: who deletes it has let go of it, and the word could reach the same piece queued again. Of several
    operations on a key the last one counts. Nothing raises on account of a fault of the disk.
    """

    def __init__(
        self,
        tier: EncodedTier,
        log: EventLog,
        on_outcome: Callable[[list[SpillOutcome]], None],
        options: SpillOptions | None = None,
    ) -> None:
        self._tier, self._event_log, self._on_outcome = tier, log, on_outcome
        self._options = options or SpillOptions()
        self._changed = threading.Condition()
        self._queue = SpillQueue(self._options.queue_bytes)
        self._busy = False
        self._paced = False
        self._hurry = 0  # callers of flush and close
        self._stop = False
        self._abandon = False
        self._pace = Pace(self._options.paced_bytes_s, self._options.paced_group_bytes, time.monotonic())
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._trouble = Trouble("disk tier")
        self._pool = ThreadPoolExecutor(self._options.encode_threads, "spill-encode", initializer=yield_to_foreground)
        self._thread = threading.Thread(target=self._run, name="spill", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- any thread

    def submit(self, seq: int, key: bytes, parts: Parts, nbytes: int) -> bool:
        """Queue a piece; False when the queue is full or closed (counted as dropped)."""
        with self._changed:
            taken = not self._stop and self._queue.put(Put(key, seq, parts, nbytes, time.monotonic()))
            self._counts["dropped"] += not taken
            self._changed.notify_all()
            return taken

    def delete(self, seq: int, keys: Iterable[bytes]) -> None:
        """Queue removals. A piece that still waits under such a key is not written."""
        with self._changed:
            for key in keys:
                self._queue.delete(Delete(key, seq, time.monotonic()))
            self._changed.notify_all()

    def queued_bytes(self) -> int:
        """Return raw bytes that wait or are being written."""
        return self._queue.queued_bytes

    def set_paced(self, paced: bool) -> None:
        """Write slowly (True) or flat out; takes effect at once."""
        with self._changed:
            self._paced = paced
            self._changed.notify_all()

    def counts(self) -> dict[str, int]:
        """Return numbers of pieces since start by their fate, and `raw_bytes` and `stored_bytes` of those stored."""
        with self._changed:
            return dict(self._counts)

    def flush(self, timeout_s: float) -> bool:
        """Write everything that is queued now, flat out, and sync. False at the timeout or when the sync failed."""
        with self._changed:
            done = self._hurry_until(lambda: not len(self._queue) and not self._busy, timeout_s)
        if not done:
            return False
        try:
            self._tier.sync()
        except TierUnavailable as error:
            _log.warning("disk tier: %s", error)
            return False
        return True

    def close(self, timeout_s: float, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Write what is queued, until the time is up or `hurry` says so, then stop; what is left gets an outcome.

        True when nothing was left. The log must still be open, since a group waits for it.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        flushed = self.flush(0.0)
        while not flushed and self._unfinished() and not hurry() and time.monotonic() < deadline:
            flushed = self.flush(min(_CLOSE_LOOK_S, max(0.0, deadline - time.monotonic())))
        with self._changed:
            self._abandon = True
            self._changed.notify_all()
        self._thread.join(1.0 if hurry() else max(1.0, deadline - time.monotonic()))
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            left = [operation for operation in self._queue.take(2**62, 2**31) if isinstance(operation, Put)]
            self._queue.release(sum(put.nbytes for put in left))
            self._counts["dropped"] += len(left)
        self._report([SpillOutcome(put.key, error="the daemon stopped before it was written") for put in left])
        return flushed and not left

    def _unfinished(self) -> bool:
        with self._changed:
            return bool(len(self._queue)) or self._busy

    def _hurry_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        self._hurry += 1
        self._changed.notify_all()
        try:
            return self._changed.wait_for(done, timeout_s)
        finally:
            self._hurry -= 1

    # ---------------------------------------------------------------- the spill thread

    def _run(self) -> None:
        yield_to_foreground()
        while (group := self._next_group()) is not None:
            outcomes: list[SpillOutcome] = []
            try:
                outcomes = self._write(group)
            except Exception as error:  # whatever it was, each piece gets its outcome and the thread goes on
                _log.exception("spill: a group of %d operations failed", len(group))
                outcomes = [SpillOutcome(put.key, error=str(error)) for put in _puts(group)]
            finally:
                self._finish(group, outcomes)

    def _next_group(self) -> list[Operation] | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) or self._abandon)
            while len(self._queue) and not self._hurry and not self._abandon:
                wait_s = self._queue.oldest_s() + self._options.group_delay_s - time.monotonic()
                if wait_s <= 0 or self._queue.queued_bytes >= self._group_bytes():
                    break
                self._changed.wait(wait_s)
            if self._abandon:
                return None
            self._busy = True
            set_background(self._paced and not self._hurry)
            return self._queue.take(self._group_bytes(), _GROUP_COUNT)

    def _group_bytes(self) -> int:
        slow = self._paced and not self._hurry
        return self._options.paced_group_bytes if slow else self._options.group_bytes

    def _write(self, group: list[Operation]) -> list[SpillOutcome]:
        encoded, outcomes = self._encode(_puts(group))
        deletes = [operation for operation in group if isinstance(operation, Delete)]
        if not encoded and not deletes:
            return outcomes
        last = max(operation.seq for operation in group)
        if not self._wait_for_log(last):
            error = f"the log is not durable past record {last}"
            with self._changed:
                self._counts["deletes_dropped"] += len(deletes)  # the next start finds the pieces in the inventory
            return outcomes + [SpillOutcome(key, error=error) for key, _ in encoded]
        try:
            stored = self._tier.write_encoded(encoded, [delete.key for delete in deletes])
        except TierUnavailable as error:
            self._trouble.failed(str(error))
            self._delete_alone(deletes, had_puts=bool(encoded))
            return outcomes + [SpillOutcome(key, error=str(error)) for key, _ in encoded]
        self._trouble.worked()
        with self._changed:
            self._counts["deleted"] += len(deletes)
        return outcomes + [SpillOutcome(key, stored_bytes=nbytes) for key, nbytes in stored.items()]

    def _encode(self, puts: list[Put]) -> tuple[list[tuple[bytes, Encoded]], list[SpillOutcome]]:
        """Encode on the pool, each piece begun when the pace allows it."""
        jobs: list[tuple[Put, Future[Encoded]]] = []
        for put in puts:
            self._wait_for_pace(put.nbytes)
            jobs.append((put, self._pool.submit(encode, put.key, put.parts)))
        encoded: list[tuple[bytes, Encoded]] = []
        failed: list[SpillOutcome] = []
        for put, job in jobs:
            try:
                encoded.append((put.key, job.result()))
            except (ValueError, MemoryError) as error:
                failed.append(SpillOutcome(put.key, error=f"can't be encoded: {error}"))
        return encoded, failed

    def _wait_for_pace(self, nbytes: int) -> None:
        with self._changed:
            if not self._paced or self._hurry:
                self._pace.forget(time.monotonic())
                return
            delay_s = self._pace.delay(nbytes, time.monotonic())
            self._changed.wait_for(lambda: not self._paced or self._hurry or self._abandon, delay_s)

    def _wait_for_log(self, seq: int) -> bool:
        deadline = time.monotonic() + self._options.log_timeout_s
        while not self._abandon:
            left = deadline - time.monotonic()
            began = time.monotonic()
            if self._event_log.wait_durable(seq, max(0.0, min(left, _LOG_POLL_S))):
                return True
            gave_up_early = time.monotonic() - began < _LOG_POLL_S / 2
            if left <= 0 or gave_up_early:  # a log that has failed does not wait
                return False
        return False

    def _delete_alone(self, deletes: list[Delete], had_puts: bool) -> None:
        """The puts did not fit: removing may still work, and makes room. What fails again waits for the next group."""
        if deletes and had_puts:
            try:
                self._tier.write_encoded([], [delete.key for delete in deletes])
                return
            except TierUnavailable as error:
                self._trouble.failed(str(error))
        self._put_back(deletes)

    def _put_back(self, deletes: list[Delete]) -> None:
        if self._stop:  # the next start finds the pieces in the inventory
            with self._changed:
                self._counts["deletes_dropped"] += len(deletes)
            return
        with self._changed:
            self._queue.restore_deletes(deletes, time.monotonic() + _RETRY_S)
            self._changed.wait_for(lambda: self._abandon, _RETRY_S / 10)  # flush may be pressing; don't spin

    def _finish(self, group: list[Operation], outcomes: list[SpillOutcome]) -> None:
        raw = {put.key: put.nbytes for put in _puts(group)}
        with self._changed:
            for outcome in outcomes:
                self._counts["failed" if outcome.error else "stored"] += 1
                self._counts["stored_bytes"] += outcome.stored_bytes
                self._counts["raw_bytes"] += 0 if outcome.error else raw.get(outcome.key, 0)
        self._report(outcomes)
        with self._changed:
            self._queue.release(sum(raw.values()))
            self._busy = False
            self._changed.notify_all()

    def _report(self, outcomes: list[SpillOutcome]) -> None:
        if not outcomes:
            return
        try:
            self._on_outcome(outcomes)
        except Exception:  # the receiver's fault must not stop writing
            _log.exception("spill: the receiver of outcomes failed")


def _puts(group: list[Operation]) -> list[Put]:
    return [operation for operation in group if isinstance(operation, Put)]
