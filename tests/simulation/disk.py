"""A pretend log and a pretend disk tier: what is durable, what a crash loses, what breaks; all chosen by the seed."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mlxcel.ports import LogUnavailable, Part, Parts, PieceCorrupt, PieceMissing, SpillOutcome, TierUnavailable


class PretendLog:
    """Implements ports.EventLog in memory. `sync` makes what was appended durable; `crash` loses part of the rest."""

    def __init__(self) -> None:
        self.records: list[tuple[bool, bytes]] = []  # (checkpoint, payload); sequence numbers start at 1
        self._durable = 0
        self.broken = False

    def append(self, payload: bytes) -> int:
        return self._add(False, payload)

    def open_segment(self, checkpoint: bytes) -> int:
        return self._add(True, checkpoint)

    def _add(self, checkpoint: bool, payload: bytes) -> int:
        if self.broken:
            raise LogUnavailable("pretend fault")
        self.records.append((checkpoint, payload))
        return len(self.records)

    def durable_seq(self) -> int:
        return self._durable

    def wait_durable(self, seq: int, timeout_s: float) -> bool:
        self.sync()
        return not self.broken

    def next_seq(self) -> int:
        return len(self.records) + 1

    def wants_checkpoint(self) -> bool:
        return not self.records

    def close(self) -> None:
        self.sync()

    def sync(self) -> None:
        """Make all records durable."""
        self._durable = len(self.records)

    def crash(self, rng: random.Random) -> None:
        """Keep what is durable and a random part of what follows."""
        kept = rng.randint(self._durable, len(self.records))
        del self.records[kept:]
        self._durable = kept
        self.broken = False

    def newest(self) -> tuple[bytes | None, list[tuple[int, bytes]]]:
        """Return the newest checkpoint and the records after it."""
        starts = [at for at, (checkpoint, _) in enumerate(self.records) if checkpoint]
        first = starts[-1] if starts else -1
        tail = [(at + 1, payload) for at, (_, payload) in enumerate(self.records) if at > first]
        return (self.records[first][1] if starts else None), tail


@dataclass(eq=False)
class _Read:
    """A restore under way; `at`: the piece that comes next."""

    keys: list[bytes]
    arrived: Callable[..., None]
    done: Callable[[Exception | None], None]
    at: int = 0


class PretendDisk:
    """Disk tier, spill writer and restorer in one; `work` does one bounded step of what is queued.

    `full`: writes fail. Flipped pieces read as corrupt, as a checksum would have it.
    """

    def __init__(self, log: PretendLog, queue_bytes: int) -> None:
        self.log = log
        self.stored: dict[bytes, list[Part]] = {}
        self.flipped: set[bytes] = set()
        self.full = False
        self.queue_bytes = queue_bytes
        self._queue: list[tuple[str, int, bytes, Parts, int]] = []
        self._reads: list[_Read] = []
        self.report: Callable[[list[SpillOutcome]], None] = lambda outcomes: None

    # ------------------------------------------------------------------ writing

    def submit(self, seq: int, key: bytes, parts: Parts, nbytes: int) -> bool:
        if self.queued_bytes() + nbytes > self.queue_bytes:
            return False
        self._queue.append(("put", seq, key, parts, nbytes))
        return True

    def delete(self, seq: int, keys: Iterable[bytes]) -> None:
        self._queue += [("delete", seq, key, [], 0) for key in keys]

    def queued_bytes(self) -> int:
        return sum(entry[4] for entry in self._queue)

    def set_paced(self, paced: bool) -> None:
        """Nothing takes time here."""

    def flush(self, timeout_s: float) -> bool:
        while self._queue:
            self.write_one()
        return True

    def close(self, timeout_s: float) -> bool:
        return self.flush(timeout_s)

    def write_one(self) -> None:
        """Commit the oldest queued operation, once the log is durable past its record."""
        if not self._queue or (self._queue[0][1] > self.log.durable_seq() and not self.log.wait_durable(0, 0)):
            return
        what, _, key, parts, _ = self._queue.pop(0)
        if what == "delete":
            self.stored.pop(key, None)
            self.flipped.discard(key)
        elif self.full:
            self.report([SpillOutcome(key, 0, "pretend disk is full")])
        else:
            self.stored[key] = list(parts)
            self.flipped.discard(key)
            self.report([SpillOutcome(key, max(1, len(parts[0].data) // 2))])

    # ------------------------------------------------------------------ reading

    def inventory(self) -> dict[bytes, int]:
        """Return key -> stored bytes."""
        return {key: max(1, len(parts[0].data) // 2) for key, parts in self.stored.items()}

    def start(
        self, keys: Sequence[bytes], arrived: Callable[..., None], done: Callable[[Exception | None], None]
    ) -> Callable[[], None]:
        job = _Read(list(keys), arrived, done)
        self._reads.append(job)
        return lambda: self._reads.remove(job) if job in self._reads else None

    def read_one(self, unavailable: bool = False) -> None:
        """Give the oldest read its next piece, or end it."""
        if not self._reads:
            return
        job = self._reads[0]
        fault: Exception | None = TierUnavailable("pretend disk does not answer") if unavailable else None
        if fault is None and job.at < len(job.keys):
            key = job.keys[job.at]
            if key not in self.stored:
                fault = PieceMissing("nothing there")
            elif key in self.flipped:
                fault = PieceCorrupt("checksum")
            if fault is None:
                job.at += 1
                job.arrived(job.at - 1, self.stored[key], lambda: None)
                return
            fault.key = key  # type: ignore[attr-defined]
        self._reads.pop(0)
        job.done(fault)

    def crash(self) -> None:
        """Forget what was only queued."""
        self._queue.clear()
        self._reads.clear()
