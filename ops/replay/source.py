"""Where a history comes from: a data directory (also of a running daemon) or a log folder."""

from collections.abc import Iterator
from pathlib import Path

from mlxcel.core.redecide import Logged
from storage.event_log.reader import LogReader
from storage.event_log.segment import list_segments


class NoHistory(Exception):
    """There is no log at that place. The message names it."""


def log_directory(path: Path) -> Path:
    """Return the log folder of a data directory, or the path itself when it is one. Raises NoHistory."""
    for candidate in (path / "log", path):
        if candidate.is_dir() and list_segments(candidate):
            return candidate
    raise NoHistory(f"{path} holds no event log: give a data directory (with a folder named log) or a log folder")


def read_log(path: Path) -> Iterator[Logged]:
    """Yield everything that the log still holds, oldest first. Raises NoHistory, and storage's LogCorrupt."""
    for seq, payload, checkpoint in LogReader(log_directory(path)).flagged_records():
        yield Logged(seq, checkpoint, payload)
