"""Keeping data to its owner: modes 0700 and 0600, and out of backups and search indexes."""

import os
import stat
import subprocess
import sys
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_ON_MACOS: bool = sys.platform == "darwin"
NO_INDEX_MARKER = ".metadata_never_index"


def make_private_directory(path: Path) -> Path:
    """Create `path` (and parents) if need be and make it readable by its owner alone. Raises OSError."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != DIRECTORY_MODE:
        path.chmod(DIRECTORY_MODE)
    return path


def make_private_file(path: Path) -> None:
    """Set mode 0600 on an existing file if it is wider. Raises OSError."""
    if stat.S_IMODE(path.stat().st_mode) != FILE_MODE:
        path.chmod(FILE_MODE)


def open_private(path: Path, flags: int) -> int:
    """Open with `os.open` flags; a file that is created has mode 0600 and is closed on exec. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def keep_out_of_backups(directory: Path) -> str:
    """Ask the system not to index or back up `directory`; returns what could not be done ("" when all was).

    The Spotlight marker file is written on every platform, since it costs nothing. On macOS `tmutil addexclusion` sets
    the Time Machine exclusion as an attribute of the directory. A refusal there is no reason not to start.
    """
    marker = directory / NO_INDEX_MARKER
    try:
        os.close(open_private(marker, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        return f"{marker}: {error.strerror}"
    return _exclude_from_time_machine(directory) if _ON_MACOS else ""


def _exclude_from_time_machine(directory: Path) -> str:
    try:
        done = subprocess.run(
            ["/usr/bin/tmutil", "addexclusion", str(directory)], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"tmutil: {error}"
    return "" if done.returncode == 0 else f"tmutil: {done.stderr.strip()}"
