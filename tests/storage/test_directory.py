"""Owning and hiding a data directory, and making files durable."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from storage.durable import replace_durably, sync_data, sync_full, write_all
from storage.errors import DirectoryLocked
from storage.lock import LOCK_NAME, DirectoryLock, owner_of
from storage.private import (
    NO_INDEX_MARKER,
    keep_out_of_backups,
    make_private_directory,
    make_private_file,
    open_private,
)

HOLDER = """
import sys, time
from pathlib import Path
from storage.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_owner_is_refused_with_the_pid_and_a_killed_one_is_no_obstacle(tmp_path: Path) -> None:
    """While another process owns the directory the lock names its pid; once that is killed the lock is free."""
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "held"
    with pytest.raises(DirectoryLocked, match=str(child.pid)) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.pid == child.pid
    assert owner_of(tmp_path) == child.pid
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    assert owner_of(tmp_path) is None
    with DirectoryLock(tmp_path):
        assert owner_of(tmp_path) == os.getpid()
    assert owner_of(tmp_path) is None


def test_the_lock_is_exclusive_within_a_process_and_releases(tmp_path: Path) -> None:
    """A second lock in the same process is refused until the first is released; releasing twice is harmless."""
    first = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryLocked):
        DirectoryLock(tmp_path)
    first.release()
    first.release()
    DirectoryLock(tmp_path).release()
    assert (tmp_path / LOCK_NAME).exists()


def test_owner_of_an_absent_directory_is_none(tmp_path: Path) -> None:
    """Asking for the owner of what isn't there says None and creates nothing."""
    assert owner_of(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_modes_are_narrowed_whatever_the_umask(tmp_path: Path) -> None:
    """Directories become 0700 and files 0600, also those that were wider before and under an open umask."""
    old = os.umask(0)
    try:
        directory = make_private_directory(tmp_path / "a" / "b")
        wide = directory / "wide"
        wide.write_text("x")
        wide.chmod(0o644)
        make_private_file(wide)
        os.close(open_private(directory / "new", os.O_CREAT | os.O_WRONLY))
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    make_private_directory(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_the_directory_is_marked_not_to_be_indexed(tmp_path: Path) -> None:
    """The marker file is written, twice without complaint, and a directory that can't take it is reported."""
    assert keep_out_of_backups(tmp_path) == ""
    assert keep_out_of_backups(tmp_path) == ""
    assert (tmp_path / NO_INDEX_MARKER).exists()
    assert NO_INDEX_MARKER in keep_out_of_backups(tmp_path / "none")


def test_replacing_keeps_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """A replaced file has the new content, mode 0600, and leaves no temporary file."""
    target = tmp_path / "file"
    replace_durably(target, b"one")
    replace_durably(target, b"two")
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        replace_durably(tmp_path / "none" / "file", b"x")


def test_writing_all_and_syncing(tmp_path: Path) -> None:
    """Bytes of any buffer are written completely, through a pipe's short writes too, and both syncs accept a file."""
    fd = open_private(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    write_all(fd, memoryview(bytes(range(256)) * 100))
    sync_data(fd)
    sync_full(fd)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(range(256)) * 100
