"""Looking at the data file and its volume from outside, before LMDB touches them."""

import os
from pathlib import Path

from storage.errors import StoreFull

_SLACK_BYTES = 128 << 10


def file_fault(data: Path, inode: int, claimed_bytes: int) -> str:
    """Say why `data` is not the file that was opened (`inode`, at least `claimed_bytes` long), or "".

    Reading a mapped page beyond the end of a file that was cut kills the process, so this is asked before each use.
    """
    try:
        status = data.stat()
    except OSError as error:
        return f"{data}: {error.strerror}; was it removed?"
    if status.st_ino != inode:
        return f"{data}: replaced under this process"
    if status.st_size < claimed_bytes:
        return f"{data}: cut to {status.st_size} of {claimed_bytes} bytes"
    return ""


def check_reserve(data: Path, live_bytes: int, need_bytes: int, reserve_bytes: int) -> None:
    """Raise StoreFull when writing `need_bytes` would make the file grow into the volume's reserve.

    Free pages in the file count only when there are twice as many as needed: LMDB can't use those that the last two
    transactions freed, nor runs that are too short. Raises OSError when file or volume can't be asked.
    """
    if not need_bytes:
        return
    spare = data.stat().st_size - live_bytes
    growth = 0 if spare >= 2 * need_bytes + _SLACK_BYTES else need_bytes
    volume = os.statvfs(data.parent)
    free = volume.f_bavail * volume.f_frsize
    if growth and free - growth < reserve_bytes:
        raise StoreFull(f"{data.parent}: {free} bytes are free on the volume, {reserve_bytes} stay in reserve")
