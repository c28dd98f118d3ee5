"""Appending: any thread hands over records, one thread writes them in groups."""

import logging
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

from storage.errors import LogError, LogUnavailable
from storage.event_log import frame, upkeep
from storage.event_log.output import SegmentOutput
from storage.event_log.settings import LogSettings, Position

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 60.0


class LogWriter:
    """Implements ports.EventLog. Made by `recovery.open_log`.

    A record waits at most `settings.delay_s` for company, less when somebody waits for it to be durable. After a failed
    write the log is `failed` for good (a flush that failed may not be repeated: the kernel may have dropped the pages);
    `append` then raises LogUnavailable and waiting ends at once. `wall` is the clock for ages, seconds since 1970.
    """

    def __init__(
        self, directory: Path, settings: LogSettings, position: Position, wall: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._settings, self._wall = directory, settings, wall
        self._output = SegmentOutput(directory, position)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._queue: list[tuple[int, bytes, bool]] = []
        self._queued_bytes = 0
        self._next = position.next_seq
        self._durable = position.next_seq - 1
        self._durable_offset = position.offset
        self._idle = False
        self._waiters = 0
        self._closing = False
        self._failed = ""
        self.upkeep_fault = ""  # why sealed segments were last left alone; "" when they weren't
        self._has_checkpoint = position.checkpoint_segment > 0
        self._checkpoint_bytes = position.checkpoint_bytes
        self._tail_bytes = max(0, position.offset - position.checkpoint_bytes)
        self._opened_s = position.created_s or wall()
        self._upkeep: Generator[None, None, None] | None = self._begin_upkeep()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- any thread

    @property
    def failed(self) -> str:
        """Why the log can't be written, or ""."""
        return self._failed

    def append(self, payload: bytes) -> int:
        """Queue a record; returns its sequence number at once. Raises LogUnavailable."""
        with self._lock:
            self._tail_bytes += len(payload) + frame.HEADER_BYTES
            return self._enqueue(payload, False)

    def open_segment(self, checkpoint: bytes) -> int:
        """Queue the sealing of the open segment and a new one that begins with `checkpoint`. Raises LogUnavailable."""
        with self._lock:
            seq = self._enqueue(checkpoint, True)
            self._has_checkpoint, self._checkpoint_bytes, self._tail_bytes = True, len(checkpoint), 0
            self._opened_s = self._wall()
            return seq

    def wants_checkpoint(self) -> bool:
        """True when there is no checkpoint yet, or the open segment is over its size or age.

        The size limit is at least the last checkpoint's own size, so that checkpoints are at most half of the log.
        """
        if self._failed or self._closing:
            return False
        if not self._has_checkpoint or self._tail_bytes >= max(self._settings.segment_bytes, self._checkpoint_bytes):
            return True
        return self._tail_bytes > 0 and self._wall() - self._opened_s >= self._settings.segment_age_s

    def durable_seq(self) -> int:
        return self._durable

    def next_seq(self) -> int:
        return self._next

    def wait_durable(self, seq: int, timeout_s: float) -> bool:
        """Wait until record `seq` is durable; False at the timeout, or at once when the log has failed."""
        with self._lock:
            self._waiters += 1
            self._wake.notify()
            try:
                self._settled.wait_for(lambda: self._durable >= seq or bool(self._failed), timeout_s)
            finally:
                self._waiters -= 1
            return self._durable >= seq

    def close(self) -> None:
        """Write what is queued, flush it and stop. Raises LogUnavailable when the end could not be written."""
        with self._lock:
            self._closing = True
            self._wake.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise LogUnavailable(f"{self._directory}: the log did not close within {_CLOSE_TIMEOUT_S:.0f} s")
        if self._failed:
            raise LogUnavailable(self._failed)

    def _enqueue(self, payload: bytes, checkpoint: bool) -> int:
        if self._failed or self._closing:
            raise LogUnavailable(self._failed or f"{self._directory}: the log is closed")
        if len(payload) > frame.MAX_PAYLOAD_BYTES:
            raise LogUnavailable(f"{self._directory}: a record of {len(payload)} bytes is over the limit")
        if self._queue and self._queued_bytes + len(payload) > self._settings.pending_bytes:
            self._fail(f"{self._directory}: {self._queued_bytes} bytes wait to be written; the device is too slow")
            raise LogUnavailable(self._failed)
        seq = self._next
        self._next = seq + 1
        self._queue.append((seq, payload, checkpoint))
        self._queued_bytes += len(payload)
        if self._idle:
            self._wake.notify()
        return seq

    def _fail(self, reason: str) -> None:
        """With the lock held."""
        self._failed = self._failed or reason
        self._queue.clear()
        self._queued_bytes = 0
        self._settled.notify_all()
        self._wake.notify()

    # ---------------------------------------------------------------- the writer thread

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._write(batch)
                self._step_upkeep()
            if self._upkeep is not None:
                self._upkeep.close()  # half a compressed copy and its descriptor go with it
            if self._failed:
                self._output.abandon(self._durable_offset)
            else:
                self._output.close()
        except Exception as error:  # the thread's last stand: the log fails, the process goes on
            _log.error("event log %s: %s", self._directory, error)
            self._output.abandon(self._durable_offset)
            with self._lock:
                self._fail(f"{self._directory}: {error}")

    def _next_batch(self) -> list[tuple[int, bytes, bool]] | None:
        """Wait for records; [] means that there is time for upkeep, None that the log is closed or has failed."""
        with self._lock:
            if not self._queue and not self._closing and not self._failed:
                if self._upkeep is not None:
                    return []
                self._idle = True
                self._wake.wait_for(lambda: self._queue or self._closing or self._failed)
                self._idle = False
            if not self._waiters and not self._closing and not self._failed:
                self._wake.wait_for(lambda: self._waiters or self._closing or self._failed, self._settings.delay_s)
            batch, self._queue, self._queued_bytes = self._queue, [], 0
            return None if self._failed or not batch else batch

    def _write(self, batch: list[tuple[int, bytes, bool]]) -> None:
        plain: list[tuple[int, bytes]] = []
        for seq, payload, checkpoint in batch:
            if checkpoint:
                self._write_group(plain)
                plain = []
                self._output.rotate(seq, payload, self._wall())
                self._mark_durable(seq)
                self._upkeep = self._begin_upkeep()
            else:
                plain.append((seq, payload))
        self._write_group(plain)

    def _write_group(self, records: list[tuple[int, bytes]]) -> None:
        if records:
            self._output.write(records, self._wall())
            self._mark_durable(records[-1][0])

    def _mark_durable(self, seq: int) -> None:
        with self._lock:
            self._durable, self._durable_offset = seq, self._output.offset
            self._settled.notify_all()

    def _begin_upkeep(self) -> Generator[None, None, None]:
        frontier = upkeep.Frontier(self._output.first_seq, self._output.checkpoint_segment)
        return upkeep.steps(self._directory, self._settings, frontier, self._wall())

    def _step_upkeep(self) -> None:
        """One small step on sealed segments. A fault there costs space, not records."""
        if self._upkeep is None:
            return
        try:
            next(self._upkeep)
        except StopIteration:
            self._upkeep, self.upkeep_fault = None, ""
        except (OSError, LogError) as error:
            self._upkeep, self.upkeep_fault = None, str(error)
            _log.warning("event log %s: sealed segments were left as they are: %s", self._directory, error)
