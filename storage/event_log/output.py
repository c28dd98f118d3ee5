"""The open segment: the one file descriptor that the log's writer thread writes to."""

import contextlib
import os
from pathlib import Path

from storage.durable import sync_data, sync_directory, sync_full, write_all
from storage.event_log import frame, manifest
from storage.event_log.segment import SegmentHeader, list_segments, name_for, pack_header
from storage.event_log.settings import Position
from storage.private import open_private


class SegmentOutput:
    """Writes records in order and makes them durable. Used by one thread; every method may raise OSError."""

    def __init__(self, directory: Path, position: Position) -> None:
        self.directory = directory
        self.checksum = position.checksum
        self.offset = position.offset
        self.checkpoint_segment = position.checkpoint_segment
        self.first_seq = 0
        self._fd = -1
        if position.segment is not None:
            self._fd = open_private(position.segment, os.O_WRONLY)
            os.lseek(self._fd, position.offset, os.SEEK_SET)
            self.first_seq = int(position.segment.name[:20])

    def write(self, records: list[tuple[int, bytes]], now_s: float) -> None:
        """Write records as one group and flush them; the first record of a new log opens a segment of its own."""
        begins = self._fd < 0
        if begins:
            self._begin(records[0][0], now_s)
        self._put(records, frame.FLAG_GROUP_START)
        sync_data(self._fd)
        if begins:
            manifest.write(self.directory, list_segments(self.directory))

    def rotate(self, seq: int, checkpoint: bytes, now_s: float) -> None:
        """Seal the open segment and begin one whose first record is `checkpoint`; durable when it returns."""
        if self._fd >= 0:
            sync_full(self._fd)
        self._begin(seq, now_s)
        self._put([(seq, checkpoint)], frame.FLAG_GROUP_START | frame.FLAG_CHECKPOINT)
        sync_full(self._fd)
        self.checkpoint_segment = seq
        manifest.write(self.directory, list_segments(self.directory))

    def abandon(self, durable_offset: int) -> None:
        """After a failed write: cut what was not made durable, as far as the device still lets us, and close.

        What can't be cut now is a torn tail, which the next start cuts.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, durable_offset)
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Flush to the medium and close."""
        if self._fd >= 0:
            sync_full(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _begin(self, seq: int, now_s: float) -> None:
        path = self.directory / name_for(seq)
        fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.first_seq = fd, seq
        header = pack_header(SegmentHeader(seq, self.checksum, int(now_s)))
        write_all(fd, header)
        sync_directory(self.directory)
        self.offset = len(header)

    def _put(self, records: list[tuple[int, bytes]], flags: int) -> None:
        pieces: list[bytes] = []
        checksum, build = self.checksum, frame.build
        for seq, payload in records:
            header, checksum = build(payload, seq, checksum, flags)
            flags = 0
            pieces.append(header)
            pieces.append(payload)
        data = b"".join(pieces)
        write_all(self._fd, data)
        self.checksum = checksum
        self.offset += len(data)
