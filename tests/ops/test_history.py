"""Which end of a damaged log still stands alone, and moving the rest aside."""

import os
from pathlib import Path

import pytest

from ops.fsck.history import set_history_aside, usable_from
from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log
from storage.event_log.segment import HEADER_BYTES


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of four segments, each a checkpoint and three records."""
    directory = tmp_path / "log"
    for _ in range(4):
        opened = open_log(directory)
        opened.writer.open_segment(b"state")
        for n in range(3):
            opened.writer.append(b"record %d" % n)
        opened.writer.close()
    assert [one.first_seq for one in LogReader(directory).segments()] == [1, 5, 9, 13]
    return directory


def flip(log: Path, segment: int, offset: int) -> None:
    """Change one byte of a segment."""
    path = LogReader(log).segments()[segment].path
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "first"),
    [
        ([], 1),
        ([(0, 3)], 5),  # a header
        ([(0, HEADER_BYTES + 20)], 5),  # a record
        ([(1, HEADER_BYTES + 20)], 9),
        ([(0, 3), (2, HEADER_BYTES + 20)], 13),  # two segments, one between them whole
        ([(3, 3)], None),  # the newest
    ],
)
def test_the_longest_whole_end_is_found(log: Path, damage: list[tuple[int, int]], first: int | None) -> None:
    """It begins with the first segment after the last damage, and not at all when the newest is damaged."""
    for segment, offset in damage:
        flip(log, segment, offset)
    assert usable_from(LogReader(log)) == first


def test_what_is_left_opens_and_what_was_moved_is_whole(log: Path) -> None:
    """The end opens as a log of its own and goes on; the older files lie in the folder byte for byte."""
    flip(log, 1, HEADER_BYTES + 20)
    older = {one.path.name: one.path.read_bytes() for one in LogReader(log).segments()[:2]}
    target, moved = set_history_aside(log, 9)
    assert (target.name, moved) == ("log.damaged-1", 2)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == older
    opened = open_log(log)
    opened.writer.close()
    found = LogReader(log).verify()
    assert (found.fault, found.first_seq, found.last_seq) == (None, 9, 16)


def test_a_crash_in_the_middle_leaves_a_log_that_starts(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one of two files was moved the log opens, and the move can be done again into another folder."""
    flip(log, 1, HEADER_BYTES + 20)
    moves: list[Path] = []
    rename = os.rename

    def once(source: Path, target: Path) -> None:
        if moves:
            raise OSError("the power went")
        moves.append(target)
        rename(source, target)

    monkeypatch.setattr("ops.fsck.history.os.rename", once)
    with pytest.raises(OSError, match="power"):
        set_history_aside(log, 9)
    monkeypatch.undo()
    opened = open_log(log)
    assert (opened.checkpoint, opened.checkpoint_seq) == (b"state", 13)
    opened.writer.close()
    assert usable_from(LogReader(log)) == 9
    assert set_history_aside(log, 9)[0].name == "log.damaged-2"
    assert LogReader(log).verify().fault is None
