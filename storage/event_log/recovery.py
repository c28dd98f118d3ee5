"""Opening a log for writing: find its end, cut a torn tail once, hand out the newest checkpoint and what follows it."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from storage.durable import replace_durably, sync_directory
from storage.event_log import frame, manifest, upkeep
from storage.event_log.reader import LogReader, TornTail, check_follows, first_checkpoint, tail_or_raise
from storage.event_log.segment import HEADER_BYTES, SegmentFile, SegmentHeader
from storage.event_log.settings import LogSettings, Position
from storage.event_log.writer import LogWriter
from storage.private import make_private_directory


class TailCut(msgspec.Struct, frozen=True):
    """A torn tail that was cut off: from `file` at byte `offset`, `cut_bytes` bytes, kept in `copy`."""

    file: Path
    offset: int
    cut_bytes: int
    reason: str
    copy: Path


class OpenedLog(msgspec.Struct, frozen=True):
    """A log ready for appending. `tail` yields (sequence number, payload) after the checkpoint, or everything when
    `checkpoint` is None; records are read from memory, already checked. `lost`: first numbers of listed segments before
    the checkpoint that are gone."""

    writer: LogWriter
    checkpoint: bytes | None
    checkpoint_seq: int
    tail: Iterator[tuple[int, bytes]]
    cut: TailCut | None
    lost: tuple[int, ...] = ()


class _Loaded(msgspec.Struct):
    segment: SegmentFile
    header: SegmentHeader
    data: bytes
    checksum: int  # of its last record, or its base
    next_seq: int


def open_log(directory: Path, settings: LogSettings | None = None, wall: Callable[[], float] = time.time) -> OpenedLog:
    """Open (or begin) the log in `directory`, which the caller owns (storage.lock).

    Reads the segments from the newest checkpoint on. Raises LogCorrupt when they are damaged anywhere but in the tail,
    or when one of them is gone (no file is changed then), LogNewerThanCode, OSError. A listed segment before that
    checkpoint is history, which the state does without: it is forgotten and named in `lost`.
    """
    settings = settings or LogSettings()
    make_private_directory(directory)
    reader = LogReader(directory)
    segments, gone = manifest.look(directory)
    first_seq = segments[0].first_seq if segments else 1
    loaded, torn = _load_from_newest_checkpoint(reader)
    checkpoint = first_checkpoint(loaded[0].data, loaded[0].header) if loaded else None
    manifest.check_none_gone(directory, segments, gone, checkpoint[0] - 1 if checkpoint else 0)
    upkeep.tidy(directory)
    cut = _cut(torn) if torn is not None else None
    manifest.write(directory, reader.segments())
    position = _position(loaded, checkpoint) if loaded else Position(next_seq=first_seq)
    writer = LogWriter(directory, settings, position, wall)
    seq, payload = checkpoint or (0, None)
    return OpenedLog(writer, payload, seq, _tail(loaded, seq), cut, tuple(gone))


def _load_from_newest_checkpoint(reader: LogReader) -> tuple[list[_Loaded], TornTail | None]:
    """Read backwards to a segment that a checkpoint opens; check each and how they follow each other."""
    segments = reader.segments()
    loaded: list[_Loaded] = []
    torn: TornTail | None = None
    for index in range(len(segments) - 1, -1, -1):
        last = index + 1 == len(segments)
        data, header = reader.load(segments[index], last)
        if header is None:
            torn = reader.torn
            continue
        one, broken = _check(segments[index], header, data, last)
        if last and one.next_seq == header.first_seq and index > 0:
            torn = TornTail(segments[index].path, 0, len(data), broken.reason if broken else frame.TORN)
            continue  # not one whole record: the segment was never born, writing goes on in the one before
        torn = broken or torn
        loaded.insert(0, one)
        if first_checkpoint(one.data, header) is not None:
            break
    for before, after in itertools.pairwise(loaded):
        check_follows(after.segment, after.header, (before.checksum, before.next_seq))
    return loaded, torn


def _check(segment: SegmentFile, header: SegmentHeader, data: bytes, last: bool) -> tuple[_Loaded, TornTail | None]:
    checksum, next_seq, end = header.base, header.first_seq, HEADER_BYTES
    torn, last_start = None, 0
    try:
        for seq, _, start, stop in frame.scan(data, HEADER_BYTES, header.base, header.first_seq):
            last_start, end, next_seq = start, stop, seq + 1
    except frame.Broken as broken:
        torn = tail_or_raise(segment, data, broken, last)
    if last_start:
        checksum = frame.checksum_at(data, last_start)
    return _Loaded(segment, header, data[:end] if torn else data, checksum, next_seq), torn


def _cut(torn: TornTail) -> TailCut:
    """Keep a copy of the torn bytes beside the segment, then shorten it (or remove it when nothing of it is whole)."""
    with open(torn.file, "rb") as file:
        file.seek(torn.offset)
        data = file.read()
    copy = torn.file.with_name(f"{torn.file.name}.{torn.offset}.cut")
    replace_durably(copy, data)
    if torn.offset == 0:
        torn.file.unlink()
        sync_directory(torn.file.parent)
    else:
        with open(torn.file, "r+b") as file:
            file.truncate(torn.offset)
            os.fsync(file.fileno())
    return TailCut(torn.file, torn.offset, len(data), torn.reason, copy)


def _position(loaded: list[_Loaded], checkpoint: tuple[int, bytes] | None) -> Position:
    end = loaded[-1]
    return Position(
        next_seq=end.next_seq,
        checksum=end.checksum,
        segment=None if end.segment.compressed else end.segment.path,
        offset=0 if end.segment.compressed else len(end.data),
        created_s=float(end.header.created_s),
        checkpoint_segment=loaded[0].header.first_seq if checkpoint else 0,
        checkpoint_bytes=len(checkpoint[1]) if checkpoint else 0,
    )


def _tail(loaded: list[_Loaded], after: int) -> Iterator[tuple[int, bytes]]:
    for one in loaded:
        for seq, _, start, end in frame.scan(one.data, HEADER_BYTES, one.header.base, one.header.first_seq):
            if seq > after:
                yield seq, one.data[start + frame.HEADER_BYTES : end]
