"""Where a history comes from: a data directory (also of a running daemon), a log folder, or an exported file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from migrations.events import upcast_record
from mlxcel.core.redecide import Logged
from ops.replay.container import BadFile, is_container, read_header, read_rows
from storage.errors import LogCorrupt
from storage.event_log.reader import LogReader, TornTail
from storage.event_log.segment import list_segments

HISTORY, ARRIVALS = "mlxcel-history", "mlxcel-arrivals"


class NoHistory(Exception):
    """There is no log at that place. The message names it."""


def log_directory(path: Path) -> Path:
    """Return the log folder of a data directory, or the path itself when it is one. Raises NoHistory."""
    for candidate in (path / "log", path):
        if candidate.is_dir() and list_segments(candidate):
            return candidate
    what = "a data directory (with a folder named log), a log folder or an export"
    raise NoHistory(f"{path} holds no event log: give {what}")


class History:
    """Everything that a log still holds, oldest first, in today's form. Iterate it once.

    Raises NoHistory when made. With `stop_at_damage` iteration ends at damage and `fault` keeps it; else it is raised
    (storage's LogCorrupt, BadFile, or ValueError of an upcaster). `torn` is the unfinished end of a log, which is no damage.
    """

    def __init__(self, path: Path, stop_at_damage: bool = False) -> None:
        self.path = path
        self.stop_at_damage = stop_at_damage
        self.fault: Exception | None = None
        self.records = 0
        self._reader: LogReader | None = None
        if path.is_file():
            if not is_container(path) or read_header(path)[0] != HISTORY:
                raise NoHistory(f"{path} is no exported history")
        else:
            self._reader = LogReader(log_directory(path))

    @property
    def torn(self) -> TornTail | None:
        """The torn tail that reading met, if any."""
        return self._reader.torn if self._reader else None

    def __iter__(self) -> Iterator[Logged]:
        try:
            for logged in self._all():
                self.records += 1
                yield logged
        except (LogCorrupt, BadFile) as fault:
            if not self.stop_at_damage:
                raise
            self.fault = fault

    def _all(self) -> Iterator[Logged]:
        if self._reader is None:
            for row in read_rows(self.path, HISTORY):
                yield _upcast(_row(self.path, row))
            return
        for seq, payload, checkpoint in self._reader.flagged_records():
            yield _upcast(Logged(seq, checkpoint, payload))


def _upcast(logged: Logged) -> Logged:
    if logged.checkpoint:
        return logged
    payload = upcast_record(logged.payload)
    return logged if payload is logged.payload else msgspec.structs.replace(logged, payload=payload)


def read_log(path: Path) -> Iterator[Logged]:
    """Yield a history's records. Raises as `History`."""
    return iter(History(path))


def _row(path: Path, row: list[Any]) -> Logged:
    match row:
        case [int(seq), bool(checkpoint), bytes(payload)]:
            return Logged(seq, checkpoint, payload)
    raise BadFile(f"{path}: a row that is no record")
