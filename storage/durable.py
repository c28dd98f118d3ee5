"""Making bytes survive: what each platform needs to get data onto the medium."""

import fcntl
import os
import sys
from pathlib import Path

_ON_MACOS: bool = sys.platform == "darwin"
_F_FULLFSYNC = 51  # <sys/fcntl.h> on macOS


def sync_data(fd: int) -> None:
    """Flush a file's data to the device. Raises OSError.

    Linux: fdatasync, which also asks the drive to flush. macOS: fsync, which stops at the drive's own cache; that is
    enough against a crash of the process or the kernel, and `sync_full` is for what a power cut may not take.
    """
    if _ON_MACOS:
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_full(fd: int) -> None:
    """Flush a file to the medium, through the drive's cache. Raises OSError.

    macOS: F_FULLFSYNC (see `man 2 fsync` there); a file system that doesn't know it falls back to fsync.
    """
    if _ON_MACOS:
        try:
            fcntl.fcntl(fd, _F_FULLFSYNC)
        except OSError:
            os.fsync(fd)
    else:
        os.fsync(fd)


def sync_directory(path: Path) -> None:
    """Make created, renamed and removed names in `path` durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write every byte at the descriptor's position; a short write goes on where it stopped. Raises OSError."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def replace_durably(path: Path, data: bytes) -> None:
    """Set a file's content atomically: a new file (mode 0600), fsync, rename over, fsync of the directory.

    A reader sees the old content or the new, never a mixture. Raises OSError; the old file then stands.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_directory(path.parent)
