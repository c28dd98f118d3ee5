"""The manifest: which segments a log has. Derived from the files, rebuildable, replaced atomically.

It exists for one thing that the files can't say themselves: that the newest segment, or all of them, are gone.
"""

from pathlib import Path

import msgspec

from storage.durable import replace_durably
from storage.errors import LogCorrupt, LogNewerThanCode
from storage.event_log.segment import SegmentFile

NAME = "manifest.json"
VERSION = 1


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


def check(directory: Path, segments: list[SegmentFile]) -> None:
    """Raise LogCorrupt when a segment that the manifest lists is gone.

    A segment that it doesn't list is no fault: files are made before they are listed, and removed after.
    """
    manifest = read(directory)
    if manifest is None:
        return
    there = {segment.first_seq for segment in segments}
    for first in manifest.first_seqs:
        if first not in there:
            raise LogCorrupt(directory / NAME, 0, f"the segment that starts at record {first} is missing")
