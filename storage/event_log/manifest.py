"""The manifest: which segments a log has. Derived from the files, rebuildable, replaced atomically.

It exists for one thing that the files can't say themselves: that the newest segment, or all of them, are gone.
"""

from pathlib import Path

import msgspec

from storage.durable import replace_durably
from storage.errors import LogCorrupt, LogNewerThanCode
from storage.event_log.segment import SegmentFile, list_segments

NAME = "manifest.json"
VERSION = 1
_LOOKS = 4


class Manifest(msgspec.Struct, frozen=True):
    """First sequence numbers of the live segments, in order."""

    version: int
    first_seqs: tuple[int, ...]


def write(directory: Path, segments: list[SegmentFile]) -> None:
    """Replace the manifest. Raises OSError."""
    manifest = Manifest(VERSION, tuple(segment.first_seq for segment in segments))
    replace_durably(directory / NAME, msgspec.json.encode(manifest))


def read(directory: Path) -> Manifest | None:
    """Return the manifest, or None when there is none or it can't be read (it is derived, so it is rebuilt then).

    Raises LogNewerThanCode for a newer version, OSError.
    """
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError:
        return None
    if manifest.version > VERSION:
        raise LogNewerThanCode(f"log manifest {directory / NAME}", manifest.version, VERSION)
    return manifest


def look(directory: Path) -> tuple[list[SegmentFile], list[int]]:
    """Return the segment files in order, and the first numbers of those that the manifest lists and that are gone.

    A segment that it doesn't list is no fault: files are made before they are listed, and removed after. A writer may
    begin or retire a segment between our two looks, so that what seems to be missing is looked for again.
    """
    for _ in range(_LOOKS):
        manifest = read(directory)
        segments = list_segments(directory)
        there = {segment.first_seq for segment in segments}
        gone = [first for first in manifest.first_seqs if first not in there] if manifest else []
        if not gone:
            break
    return segments, gone


def check_none_gone(directory: Path, segments: list[SegmentFile], gone: list[int], since_seq: int) -> None:
    """Raise LogCorrupt when a segment that is gone may have held a record after `since_seq`."""
    known = sorted({*gone, *(segment.first_seq for segment in segments)})
    for first in gone:
        following = next((other for other in known if other > first), None)
        if following is None or following > since_seq + 1:
            raise LogCorrupt(directory / NAME, 0, f"the segment that starts at record {first} is missing")
