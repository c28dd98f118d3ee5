"""A log whose older part is damaged: what of it still stands alone, and putting the damaged part aside.

The daemon starts from the newest checkpoint and reads nothing before it (storage.event_log.recovery), so damage there
costs no cache; only what walks through the whole history (replay, what-if) ends at it.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from storage.durable import sync_directory
from storage.errors import LogCorrupt
from storage.event_log import manifest
from storage.event_log.reader import LogReader, first_checkpoint
from storage.event_log.segment import SegmentFile, name_for
from storage.private import make_private_directory


def usable_from(reader: LogReader) -> int | None:
    """Return the first record of the longest end of a log that is whole and opens with a checkpoint; None without one.

    Raises LogNewerThanCode, OSError.
    """
    segments = reader.segments()
    at = 0
    while at < len(segments):
        if _opens_with_checkpoint(reader, segments, at):
            try:
                for _ in reader.records(segments[at].first_seq - 1):
                    pass
                return segments[at].first_seq
            except LogCorrupt as fault:
                # A segment that doesn't follow the one before may itself be whole: it is the next to try.
                at = max(at + 1, _index_of(fault.file, segments))
        else:
            at += 1
    return None


def _opens_with_checkpoint(reader: LogReader, segments: Sequence[SegmentFile], at: int) -> bool:
    try:
        data, header = reader.load(segments[at], at + 1 == len(segments))
    except LogCorrupt:
        return False
    return first_checkpoint(data, header) is not None


def _index_of(file: Path, segments: Sequence[SegmentFile]) -> int:
    named = file.name.split(".")[0]
    return next((at for at, one in enumerate(segments) if one.path.name.split(".")[0] == named), 0)


def set_history_aside(directory: Path, first_seq: int) -> tuple[Path, int]:
    """Move the segments before record `first_seq` into `<directory>.damaged-<n>`; returns the folder and how many.

    The manifest goes first: a crash in the middle leaves a log that starts as before. Raises OSError.
    """
    segments = LogReader(directory).segments()
    number = 1
    while (target := directory.with_name(f"{directory.name}.damaged-{number}")).exists():
        number += 1
    make_private_directory(target)
    manifest.write(directory, [one for one in segments if one.first_seq >= first_seq])
    older = [one for one in segments if one.first_seq < first_seq]
    for one in older:
        for compressed in (False, True):  # both forms are there when a crash came while one was made from the other
            name = name_for(one.first_seq, compressed)
            if (directory / name).exists():
                os.rename(directory / name, target / name)
    sync_directory(target)
    sync_directory(directory)
    return target, len(older)
