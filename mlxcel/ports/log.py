"""The event log, for its writer and its readers."""

from collections.abc import Iterator
from typing import Protocol


class LogUnavailable(Exception):
    """The log can't be written any more in this process; the reason is the message."""


class EventLog(Protocol):
    """Append-only, group-committed. `append` returns at once with the record's sequence number."""

    def append(self, payload: bytes) -> int: ...

    def durable_seq(self) -> int: ...

    def wait_durable(self, seq: int, timeout_s: float) -> bool: ...

    def next_seq(self) -> int: ...

    def wants_checkpoint(self) -> bool:
        """True when the open segment is over its size or age and a checkpoint should open the next one."""
        ...

    def open_segment(self, checkpoint: bytes) -> int:
        """Seal the open segment and begin a new one whose first record is `checkpoint`; returns its sequence number."""
        ...

    def close(self) -> None: ...


class RecordSource(Protocol):
    """A log opened for reading: the newest checkpoint and the records after it, or everything."""

    def records(self, since_seq: int = 0) -> Iterator[tuple[int, bytes]]: ...
