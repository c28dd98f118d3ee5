"""Reading pieces back on a few threads: read, verify, decompress, all without the GIL."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from mlxcel.ports import DiskTier, Part, TierUnavailable
from storage.errors import StoreUnavailable

_log = logging.getLogger(__name__)

Arrived = Callable[[int, list[Part], Callable[[], None]], None]
Done = Callable[[Exception | None], None]
HELD_PER_THREAD = 2  # decoded pieces: one that waits to be taken while the next one is decoded


def default_threads() -> int:
    """Return half of the processors, 2 to 8: one thread decodes about 1.3 GB/s of bf16, a fast SSD reads several times that."""
    return min(8, max(2, (os.cpu_count() or 2) // 2))


class _Job:
    """One `start`: its keys, how many are still to come, and whether anybody still wants them."""

    def __init__(self, keys: Sequence[bytes], arrived: Arrived, done: Done) -> None:
        self.keys = list(keys)
        self.left = len(self.keys)
        self.arrived, self.done = arrived, done
        self.over = False  # cancelled, failed or finished


class RestorePool:
    """Implements ports.Restorer.

    The keys of a request are spread over the threads, requests in order of arrival. At most `max_keys` wait: a request
    beyond that is answered with StoreUnavailable at once (through `done`, from a thread); the caller prefills instead.
    Decoded pieces that nobody has taken yet are bounded too, so that a long prefix never stands twice in memory.
    `threads` 0: as many as suit the machine.
    """

    def __init__(self, tier: DiskTier, threads: int = 0, max_keys: int = 65_536) -> None:
        self._tier, self._max_keys = tier, max_keys
        self._changed = threading.Condition()
        self._waiting: deque[tuple[_Job, int]] = deque()
        self._refused: deque[_Job] = deque()
        self._closed = False
        threads = threads or default_threads()
        self._room = threads * HELD_PER_THREAD
        self._threads = [
            threading.Thread(target=self._run, name=f"restore-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, keys: Sequence[bytes], arrived: Arrived, done: Done) -> Callable[[], None]:
        """Read all keys; see ports.Restorer. After the returned cancel function nothing is called, unless it had begun."""
        job = _Job(keys, arrived, done)
        with self._changed:
            if self._closed or len(self._waiting) + len(job.keys) > self._max_keys or not job.keys:
                self._refused.append(job)
            else:
                self._waiting.extend((job, index) for index in range(len(job.keys)))
            self._changed.notify_all()
            closed = self._closed
        if closed:
            threading.Thread(target=self._answer_refused, name="restore-refused", daemon=True).start()
        return lambda: self._cancel(job)

    def waiting_keys(self) -> int:
        """Return how many reads wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Stop the threads after the reads they are in; requests that wait are answered with StoreUnavailable."""
        with self._changed:
            self._closed = True
            left = {id(job): job for job, _ in self._waiting}
            self._waiting.clear()
            self._refused.extend(left.values())
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._answer_refused()

    def _cancel(self, job: _Job) -> None:
        with self._changed:
            if not job.over:
                self._drop(job)

    def _drop(self, job: _Job) -> None:
        job.over = True
        self._waiting = deque(item for item in self._waiting if item[0] is not job)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: (self._waiting and self._room > 0) or self._refused or self._closed)
                if self._closed:
                    return
                task = None
                if not self._refused:
                    task = self._waiting.popleft()
                    self._room -= 1
            if task is None:
                self._answer_refused()
            else:
                self._read(*task)

    def _read(self, job: _Job, index: int) -> None:
        """Read one piece and hand it over; its place is free again once it was taken or is not wanted."""
        key = job.keys[index]
        try:
            parts = self._tier.read(key)
        except Exception as error:  # any fault is the answer to this request, and the thread goes on
            if getattr(error, "key", None) is None:
                error.key = key  # type: ignore[attr-defined]
            self._taken()
            self._end(job, error)
            return
        if job.over:
            self._taken()
            return
        self._call(job.arrived, index, parts, _Once(self._taken))
        with self._changed:
            job.left -= 1
            finished = job.left == 0
        if finished:
            self._end(job, None)

    def _taken(self) -> None:
        with self._changed:
            self._room += 1
            self._changed.notify_all()

    def _answer_refused(self) -> None:
        while True:
            with self._changed:
                if not self._refused:
                    return
                job = self._refused.popleft()
            fault: TierUnavailable = StoreUnavailable("reading is closed" if self._closed else "too many reads wait")
            self._end(job, fault if job.keys else None)

    def _end(self, job: _Job, answer: Exception | None) -> None:
        with self._changed:
            if job.over:
                return
            self._drop(job)
        self._call(job.done, answer)

    def _call(self, receiver: Callable[..., None], *values: object) -> None:
        try:
            receiver(*values)
        except Exception:  # the receiver's fault must not stop reading
            _log.exception("restore: the receiver of a result failed")


class _Once:
    """Calls on at most once, and at the latest when nobody refers to it any more."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def __call__(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()

    __del__ = __call__
