"""Reading a log, also while a writer appends to it. Never changes a file."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from storage.errors import LogCorrupt, LogNewerThanCode
from storage.event_log import frame, manifest
from storage.event_log.segment import (
    HEADER_BYTES,
    SegmentFile,
    SegmentHeader,
    list_segments,
    read_bytes,
    unpack_header,
)
from storage.event_log.tail import is_torn

_READ_TRIES = 3


class TornTail(msgspec.Struct, frozen=True):
    """The end of the last segment that holds no whole record."""

    file: Path
    offset: int
    cut_bytes: int
    reason: str


class VerifyReport(msgspec.Struct, frozen=True):
    """What `LogReader.verify` found. `fault` is the first damage (None when all is well); `torn` is no damage."""

    segments: int
    records: int
    log_bytes: int
    first_seq: int
    last_seq: int
    torn: TornTail | None
    fault: LogCorrupt | LogNewerThanCode | None


class LogReader:
    """A log directory, read-only. Implements ports.RecordSource.

    A log that is being written ends, for a reader, at the last whole record. Each call lists the directory anew.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.torn: TornTail | None = None  # set when `records` met a torn tail
        self.bytes_read = 0

    def records(self, since_seq: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence number, payload) of every record after `since_seq`, in order.

        Raises LogCorrupt at the first damage that is not a torn tail of the last segment (records before it have been
        yielded), LogNewerThanCode, OSError.
        """
        for seq, payload, _ in self.flagged_records(since_seq):
            yield seq, payload

    def flagged_records(self, since_seq: int = 0) -> Iterator[tuple[int, bytes, bool]]:
        """As `records`, with whether the record is a checkpoint."""
        segments, gone = manifest.look(self.directory) if self.directory.is_dir() else ([], [])
        manifest.check_none_gone(self.directory, segments, gone, since_seq)
        self.torn = None
        expected: tuple[int, int] | None = None
        for index, segment in enumerate(segments):
            last = index + 1 == len(segments)
            if not last and segments[index + 1].first_seq <= since_seq + 1:
                continue
            data, header = self.load(segment, last)
            if header is None:
                return
            check_follows(segment, header, expected)
            previous, seq = header.base, header.first_seq
            try:
                for seq, flags, start, end in frame.scan(data, HEADER_BYTES, header.base, header.first_seq):
                    if seq > since_seq:
                        yield seq, data[start + frame.HEADER_BYTES : end], bool(flags & frame.FLAG_CHECKPOINT)
                    previous = start
            except frame.Broken as broken:
                self.torn = tail_or_raise(segment, data, broken, last)
                return
            if len(data) == HEADER_BYTES:
                expected = (header.base, header.first_seq)
            else:
                expected = (frame.checksum_at(data, previous), seq + 1)

    def newest_checkpoint(self) -> tuple[int, bytes] | None:
        """Return (sequence number, payload) of the checkpoint that opens the newest segment that has one, or None."""
        segments = self.segments()
        for index in range(len(segments) - 1, -1, -1):
            data, header = self.load(segments[index], index + 1 == len(segments))
            found = first_checkpoint(data, header)
            if found is not None:
                return found
        return None

    def verify(self) -> VerifyReport:
        """Read everything and report the first damage instead of raising it."""
        self.bytes_read = 0
        fault: LogCorrupt | LogNewerThanCode | None = None
        count = first = last = 0
        try:
            for seq, _ in self.records():
                first = first or seq
                last = seq
                count += 1
        except (LogCorrupt, LogNewerThanCode) as error:
            fault = error
        return VerifyReport(len(self.segments()), count, self.bytes_read, first, last, self.torn, fault)

    def segments(self) -> list[SegmentFile]:
        """Return the segment files in order; an absent directory is an empty log."""
        return list_segments(self.directory) if self.directory.is_dir() else []

    def load(self, segment: SegmentFile, last: bool) -> tuple[bytes, SegmentHeader | None]:
        """Return a segment's bytes and header; no header when the last segment has none yet (its birth was torn)."""
        data = self._read(segment)
        self.bytes_read += len(data)
        try:
            return data, unpack_header(data, segment)
        except LogCorrupt as error:
            if not last or not is_torn(data, 0):
                raise
            self.torn = TornTail(segment.path, 0, len(data), error.reason)
            return data, None

    def _read(self, segment: SegmentFile) -> bytes:
        """Read a segment that a running writer may be compressing: the plain file can vanish for the other form."""
        for _ in range(_READ_TRIES):
            try:
                return read_bytes(segment)
            except FileNotFoundError:
                again = [other for other in self.segments() if other.first_seq == segment.first_seq]
                if not again:
                    raise
                segment = again[0]
        return read_bytes(segment)


def check_follows(segment: SegmentFile, header: SegmentHeader, expected: tuple[int, int] | None) -> None:
    """Raise LogCorrupt unless the segment follows the one before: `expected` is (checksum, next sequence number)."""
    if expected is None:
        return
    checksum, seq = expected
    if header.first_seq != seq:
        raise LogCorrupt(segment.path, 0, f"records {seq} to {header.first_seq - 1} are missing before this segment")
    if header.base != checksum:
        raise LogCorrupt(segment.path, 0, f"the segment does not follow record {seq - 1}")


def tail_or_raise(segment: SegmentFile, data: bytes, broken: frame.Broken, last: bool) -> TornTail:
    """Return the torn tail that `broken` begins, or raise LogCorrupt when it is damage to a finished part."""
    if last and not segment.compressed and is_torn(data, broken.offset):
        return TornTail(segment.path, broken.offset, len(data) - broken.offset, broken.reason)
    raise LogCorrupt(segment.path, broken.offset, broken.reason) from broken


def first_checkpoint(data: bytes, header: SegmentHeader | None) -> tuple[int, bytes] | None:
    """Return the record that opens a segment when it is whole and a checkpoint."""
    if header is None:
        return None
    try:
        for seq, flags, start, end in frame.scan(data, HEADER_BYTES, header.base, header.first_seq):
            return (seq, data[start + frame.HEADER_BYTES : end]) if flags & frame.FLAG_CHECKPOINT else None
    except frame.Broken:
        return None
    return None
