"""What happens to sealed segments: compression, then archiving or removal. In small steps, so that appends go on."""

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import zstandard

from storage.durable import sync_directory, write_all
from storage.errors import LogError
from storage.event_log import manifest
from storage.event_log.segment import SegmentFile, list_segments, name_for, unpack_header
from storage.event_log.settings import LogSettings
from storage.private import make_private_directory, open_private

_STEP_BYTES = 1 << 20
_TEMPORARY = ".compressing.tmp"


class Frontier(msgspec.Struct, frozen=True):
    """The segments that must stay as they are: the open one, and all from the newest checkpoint on must stay here."""

    open_first_seq: int
    checkpoint_first_seq: int


def tidy(directory: Path) -> None:
    """Remove what an interrupted compression left: its temporary file, or a copy whose original is still there."""
    for path in directory.iterdir():
        if path.name.endswith(_TEMPORARY) or (
            path.name.endswith(".log.zst") and path.with_name(path.name.removesuffix(".zst")).is_file()
        ):
            path.unlink()


def steps(directory: Path, settings: LogSettings, frontier: Frontier, now_s: float) -> Generator[None, None, None]:
    """Do the work; yields after each piece of about a millisecond. Raises OSError, LogError."""
    if settings.compress_level > 0:
        for segment in list_segments(directory):
            if segment.first_seq < frontier.open_first_seq and not segment.compressed:
                yield from _compress(segment, settings.compress_level)
    yield from _retire(directory, settings, frontier, now_s)


def _compress(segment: SegmentFile, level: int) -> Iterator[None]:
    data = segment.path.read_bytes()
    unpack_header(data, segment)
    temporary = segment.path.with_name(segment.path.name + _TEMPORARY)
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        coder = zstandard.ZstdCompressor(level=level, write_checksum=True).compressobj(size=len(data))
        for start in range(0, len(data), _STEP_BYTES):
            write_all(fd, coder.compress(data[start : start + _STEP_BYTES]))
            yield
        write_all(fd, coder.flush())
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(fd)
    yield from _compare(temporary, data)
    written = segment.path.stat()
    os.utime(temporary, ns=(written.st_atime_ns, written.st_mtime_ns))  # its age is that of its last record
    os.replace(temporary, segment.path.with_name(name_for(segment.first_seq, compressed=True)))
    sync_directory(segment.path.parent)
    segment.path.unlink()
    yield


def _compare(packed: Path, data: bytes) -> Iterator[None]:
    """Read a compressed file back and compare, before the plain one goes."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    at = 0
    with open(packed, "rb") as file:
        while chunk := file.read(_STEP_BYTES // 4):
            plain = decoder.decompress(chunk)
            if data[at : at + len(plain)] != plain:
                break
            at += len(plain)
            yield
    if at != len(data):
        packed.unlink()
        raise LogError(f"{packed}: the compressed segment does not read back at byte {at}; the plain one stays")


def _retire(directory: Path, settings: LogSettings, frontier: Frontier, now_s: float) -> Iterator[None]:
    """Move or remove the oldest segments beyond the limits; never the newest checkpoint's or a later one."""
    segments = list_segments(directory)
    kept = [segment for segment in segments if segment.first_seq >= frontier.checkpoint_first_seq]
    old = [segment for segment in segments if segment.first_seq < frontier.checkpoint_first_seq]
    total = sum(segment.path.stat().st_size for segment in old)
    gone: list[SegmentFile] = []
    for segment in old:
        status = segment.path.stat()
        if total <= settings.keep_bytes and now_s - status.st_mtime <= settings.keep_age_s:
            break
        total -= status.st_size
        gone.append(segment)
    if not gone:
        return
    # The manifest first: a listed segment that is not there is a fault, an unlisted one is not.
    manifest.write(directory, old[len(gone) :] + kept)
    for segment in gone:
        _part_with(segment, settings.archive_dir)
        yield
    sync_directory(directory)


def _part_with(segment: SegmentFile, archive_dir: Path | None) -> None:
    if archive_dir is None:
        segment.path.unlink()
        return
    make_private_directory(archive_dir)
    os.replace(segment.path, archive_dir / segment.path.name)
    sync_directory(archive_dir)
