"""One owner per data directory."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from storage.errors import DirectoryLocked
from storage.private import make_private_directory, open_private

LOCK_NAME = "owner.lock"


class DirectoryLock:
    """An advisory lock (flock) on `<directory>/owner.lock`, held until `release` or the end of the process.

    The kernel drops the lock when its holder dies, so a file left by a killed process never blocks a start; the pid in
    the file only serves the message. Reading tools don't take it.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock or raise DirectoryLocked (naming the owner's pid) or OSError."""
        self.directory = make_private_directory(directory)
        self._fd = open_private(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _pid_in(self._fd)
            os.close(self._fd)
            raise DirectoryLocked(directory, owner) from None
        except OSError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the directory back; a second call does nothing."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def owner_of(directory: Path) -> int | None:
    """Return the pid of the process that owns `directory`, or None when it is free. Changes nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(fd)
    finally:
        os.close(fd)
    return None


def _pid_in(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
