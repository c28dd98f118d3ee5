"""Segment files: their names, their header, and how their bytes are read, plain or compressed.

A segment is `<first sequence number, 20 digits>.log`, or `.log.zst` once it is sealed and compressed (one zstd frame of
the same bytes). Header, little-endian, 32 bytes:

    0   8  magic "mxlog\\r\\n\\0"
    8   2  frame version
    10  2  zero
    12  4  checksum of the record before the first one (0 for the first segment of a log)
    16  8  sequence number of the first record
    24  4  creation time, whole seconds since 1970
    28  4  CRC-32 of bytes 0..27
"""

import os
import re
import struct
import zlib
from pathlib import Path

import msgspec
import zstandard

from storage.errors import LogCorrupt, LogNewerThanCode

FRAME_VERSION = 1
MAGIC = b"mxlog\r\n\0"
HEADER = struct.Struct("<8sHHIQI")
HEADER_BYTES = HEADER.size + 4
MAX_SEGMENT_BYTES = 4 << 30
_NAME = re.compile(r"^(\d{20})\.log(\.zst)?$")


class SegmentHeader(msgspec.Struct, frozen=True):
    """What a segment says of itself. `base` is the checksum that its first record must name as the previous one."""

    first_seq: int
    base: int
    created_s: int
    version: int = FRAME_VERSION


class SegmentFile(msgspec.Struct, frozen=True, order=True):
    """A segment in a directory."""

    first_seq: int
    path: Path
    compressed: bool


def name_for(first_seq: int, compressed: bool = False) -> str:
    """Return the file name of the segment that starts at `first_seq`."""
    return f"{first_seq:020d}.log" + (".zst" if compressed else "")


def list_segments(directory: Path) -> list[SegmentFile]:
    """Return the segments of a directory in order. Other files are ignored.

    When a segment is there in both forms (a crash between compressing it and removing the plain file), the plain one
    counts: it is the original. A dangling link or a directory with such a name is no segment.
    """
    found: dict[int, SegmentFile] = {}
    for name in os.listdir(directory):
        match = _NAME.match(name)
        path = directory / name
        if match is None or not path.is_file():
            continue
        segment = SegmentFile(int(match[1]), path, match[2] is not None)
        if segment.first_seq not in found or not segment.compressed:
            found[segment.first_seq] = segment
    return [found[first] for first in sorted(found)]


def pack_header(header: SegmentHeader) -> bytes:
    """Return the 32 bytes that open a segment."""
    seconds = max(0, min(header.created_s, 0xFFFFFFFF))
    packed = HEADER.pack(MAGIC, header.version, 0, header.base, header.first_seq, seconds)
    return packed + zlib.crc32(packed).to_bytes(4, "little")


def unpack_header(data: bytes, segment: SegmentFile) -> SegmentHeader:
    """Read and check a header. Raises LogCorrupt, or LogNewerThanCode for a frame version this code does not know."""
    if len(data) < HEADER_BYTES:
        raise LogCorrupt(segment.path, 0, "the segment header is cut short")
    packed = data[: HEADER.size]
    if zlib.crc32(packed) != int.from_bytes(data[HEADER.size : HEADER_BYTES], "little"):
        raise LogCorrupt(segment.path, 0, "the segment header's checksum does not match")
    magic, version, _, base, first_seq, created_s = HEADER.unpack(packed)
    if magic != MAGIC:
        raise LogCorrupt(segment.path, 0, "not a log segment")
    if version > FRAME_VERSION:
        raise LogNewerThanCode(f"log segment {segment.path}", version, FRAME_VERSION)
    if first_seq != segment.first_seq:
        raise LogCorrupt(segment.path, 0, f"the header says that the segment starts at record {first_seq}")
    return SegmentHeader(first_seq, base, created_s, version)


def read_bytes(segment: SegmentFile) -> bytes:
    """Return a segment's bytes, decompressed. Raises LogCorrupt or OSError.

    The size is taken from the zstd frame and bounded before anything is decompressed.
    """
    raw = segment.path.read_bytes()
    if not segment.compressed:
        return raw
    try:
        size = zstandard.frame_content_size(raw)
        if not 0 <= size <= MAX_SEGMENT_BYTES:
            raise LogCorrupt(segment.path, 0, f"the compressed segment claims {size} bytes")
        data = zstandard.ZstdDecompressor().decompress(raw, max_output_size=size, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise LogCorrupt(segment.path, 0, f"the compressed segment can't be read: {error}") from error
    if len(data) != size:
        raise LogCorrupt(segment.path, 0, f"the compressed segment gives {len(data)} of {size} bytes")
    return data
