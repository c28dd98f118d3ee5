"""The event log on healthy files: order, groups, rotation, reading alongside, retention."""

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel import ports
from storage.event_log import frame
from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log
from storage.event_log.segment import list_segments
from storage.event_log.settings import LogSettings

SMALL = LogSettings(segment_bytes=2_000, delay_s=0.001)


def wait_for_upkeep(directory: Path, plain: int = 1) -> None:
    """Wait until only `plain` segments are uncompressed."""
    for _ in range(500):
        if sum(not segment.compressed for segment in list_segments(directory)) <= plain:
            return
        threading.Event().wait(0.01)
    raise AssertionError(sorted(os.listdir(directory)))


def fill(directory: Path, count: int, log_settings: LogSettings = SMALL) -> list[tuple[int, bytes]]:
    """Append `count` records, opening a segment whenever the log wants one; returns all records in order."""
    opened = open_log(directory, log_settings)
    written = []
    for number in range(count):
        if opened.writer.wants_checkpoint():
            payload = b"checkpoint %d" % number
            written.append((opened.writer.open_segment(payload), payload))
        payload = b"record %d " % number + bytes(number % 50)
        written.append((opened.writer.append(payload), payload))
    assert opened.writer.wait_durable(written[-1][0], 10)
    opened.writer.close()
    return written


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_scan_returns_what_was_built(payloads: list[bytes]) -> None:
    """Records that are built one after another are scanned back with their numbers and flags."""
    data, checksum = b"", 7
    for number, payload in enumerate(payloads):
        header, checksum = frame.build(payload, 5 + number, checksum, number % 4)
        data += header + payload
    found = [(seq, flags, data[at + frame.HEADER_BYTES : end]) for seq, flags, at, end in frame.scan(data, 0, 7, 5)]
    assert found == [(5 + number, number % 4, payload) for number, payload in enumerate(payloads)]


def test_records_come_back_in_order_over_segments(tmp_path: Path) -> None:
    """All records of many segments, compressed and plain, are read back in order with numbers from 1."""
    written = fill(tmp_path, 300)
    assert [seq for seq, _ in written] == list(range(1, len(written) + 1))
    assert len(list_segments(tmp_path)) > 5
    assert list(LogReader(tmp_path).records()) == written


@pytest.mark.parametrize("since", [0, 1, 57, 299, 10_000])
def test_since_seq_skips_exactly_the_records_up_to_it(tmp_path: Path, since: int) -> None:
    """`records(since_seq)` gives the records after that number and no other."""
    written = fill(tmp_path, 300)
    assert list(LogReader(tmp_path).records(since)) == [item for item in written if item[0] > since]


def test_a_restart_goes_on_with_the_numbers_and_hands_out_checkpoint_and_tail(tmp_path: Path) -> None:
    """Opening again yields the newest checkpoint and exactly the records after it; numbers go on."""
    written = fill(tmp_path, 120)
    opened = open_log(tmp_path, SMALL)
    newest = max(index for index, (_, payload) in enumerate(written) if payload.startswith(b"checkpoint"))
    assert (opened.checkpoint_seq, opened.checkpoint) == written[newest]
    assert list(opened.tail) == written[newest + 1 :]
    assert opened.cut is None
    assert LogReader(tmp_path).newest_checkpoint() == written[newest]
    assert opened.writer.append(b"next") == written[-1][0] + 1
    opened.writer.close()
    assert list(LogReader(tmp_path).records()) == [*written, (written[-1][0] + 1, b"next")]


def test_each_segment_opens_with_a_checkpoint_and_replays_alone(tmp_path: Path) -> None:
    """Every segment's first record is a checkpoint and its records are readable with all other segments gone."""
    written = fill(tmp_path, 200)
    wait_for_upkeep(tmp_path, plain=len(list_segments(tmp_path)))
    for segment in list_segments(tmp_path):
        alone = tmp_path / "alone"
        alone.mkdir(exist_ok=True)
        copy = alone / segment.path.name
        copy.write_bytes(segment.path.read_bytes())
        flagged = list(LogReader(alone).flagged_records())
        assert flagged[0][2]
        assert [(seq, payload) for seq, payload, _ in flagged] == [
            item for item in written if flagged[0][0] <= item[0] <= flagged[-1][0]
        ]
        copy.unlink()


def test_sealed_segments_are_compressed_and_read_the_same(tmp_path: Path) -> None:
    """The writer thread compresses every sealed segment; the records read the same and the files are smaller."""
    written = fill(tmp_path, 200, LogSettings(segment_bytes=2_000, delay_s=0.001, compress_level=0))
    before = sum(segment.path.stat().st_size for segment in list_segments(tmp_path))
    opened = open_log(tmp_path, SMALL)
    wait_for_upkeep(tmp_path)
    opened.writer.close()
    assert sum(segment.compressed for segment in list_segments(tmp_path)) == len(list_segments(tmp_path)) - 1
    assert sum(segment.path.stat().st_size for segment in list_segments(tmp_path)) < before / 2
    assert list(LogReader(tmp_path).records()) == written


def test_an_interrupted_compression_is_tidied_up(tmp_path: Path) -> None:
    """A temporary file and a compressed copy beside its original are removed at the next start; nothing is lost."""
    written = fill(tmp_path, 60, LogSettings(segment_bytes=2_000, compress_level=0))
    first = list_segments(tmp_path)[0]
    first.path.with_name(first.path.name + ".compressing.tmp").write_bytes(b"half")
    first.path.with_name(first.path.name + ".zst").write_bytes(b"half")
    assert list(LogReader(tmp_path).records()) == written
    opened = open_log(tmp_path, LogSettings(compress_level=0))
    opened.writer.close()
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".tmp", ".zst"))]
    assert list(LogReader(tmp_path).records()) == written


def test_threads_get_distinct_numbers_and_every_record_is_durable(tmp_path: Path) -> None:
    """Records of several threads get each number once, and `wait_durable` holds for all."""
    opened = open_log(tmp_path, LogSettings())
    taken: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]

    def work(which: int) -> None:
        for number in range(500):
            payload = b"%d:%d" % (which, number)
            taken[which].append((opened.writer.append(payload), payload))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened.writer.next_seq() == 2_001
    assert opened.writer.wait_durable(2_000, 10)
    assert opened.writer.durable_seq() == 2_000
    assert list(LogReader(tmp_path).records()) == sorted(record for records in taken for record in records)
    opened.writer.close()


def test_a_reader_alongside_sees_a_growing_prefix(tmp_path: Path) -> None:
    """While a writer appends, rotates and compresses, each reading is a gapless prefix, never shorter than the last."""
    opened = open_log(tmp_path, LogSettings(segment_bytes=20_000, delay_s=0.001))
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            if opened.writer.wants_checkpoint():
                opened.writer.open_segment(b"c")
            opened.writer.append(b"%d" % number * 20)
            number += 1
            if number % 50 == 0:
                stop.wait(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    seen = 0
    for _ in range(20):
        numbers = [seq for seq, _ in LogReader(tmp_path).records()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= seen
        seen = len(numbers)
    stop.set()
    thread.join()
    opened.writer.close()
    assert LogReader(tmp_path).verify().fault is None


@pytest.mark.parametrize("archive", [True, False])
def test_retention_parts_with_the_oldest_sealed_segments(tmp_path: Path, archive: bool) -> None:
    """Beyond the byte limit the oldest segments go to the archive or away; what is left starts at a checkpoint."""
    log, old = tmp_path / "log", tmp_path / "old"
    written = fill(log, 400, LogSettings(segment_bytes=2_000, compress_level=0))
    before = len(list_segments(log))
    limits = LogSettings(segment_bytes=2_000, keep_bytes=6_000, compress_level=0, archive_dir=old if archive else None)
    opened = open_log(log, limits)
    opened.writer.open_segment(b"newest")
    opened.writer.append(b"x")
    for _ in range(300):
        if len(list_segments(log)) <= 5:
            break
        threading.Event().wait(0.01)
    opened.writer.close()
    kept = list_segments(log)
    assert len(kept) <= 5
    flagged = list(LogReader(log).flagged_records())
    assert flagged[0][2]
    assert flagged[-2][1] == b"newest"
    if archive:
        assert len(list_segments(old)) + len(kept) == before + 1
        assert next(iter(LogReader(old).records())) == written[0]


def test_age_asks_for_a_checkpoint(tmp_path: Path) -> None:
    """A segment over its age wants a checkpoint once it has a record; the clock set back asks for nothing."""
    now = [1_000_000.0]
    opened = open_log(tmp_path, LogSettings(segment_age_s=100), wall=lambda: now[0])
    assert opened.writer.wants_checkpoint()
    opened.writer.open_segment(b"c")
    now[0] += 1_000
    assert not opened.writer.wants_checkpoint()
    opened.writer.append(b"x")
    assert opened.writer.wants_checkpoint()
    now[0] -= 5_000
    assert not opened.writer.wants_checkpoint()
    opened.writer.close()


def test_files_are_private(tmp_path: Path) -> None:
    """The log directory has mode 0700 and every file 0600."""
    fill(tmp_path / "log", 100)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "log").iterdir()} == {0o600}


def test_a_closed_log_refuses_and_waiting_ends(tmp_path: Path) -> None:
    """After `close` appending raises LogUnavailable; waiting for what was never written ends at the timeout."""
    opened = open_log(tmp_path)
    opened.writer.append(b"x")
    opened.writer.close()
    with pytest.raises(ports.LogUnavailable, match="closed"):
        opened.writer.append(b"y")
    assert opened.writer.durable_seq() == 1
    assert not opened.writer.wait_durable(2, 0.01)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=40), max_size=8), max_size=4))
def test_any_sequence_of_runs_reads_back(tmp_path_factory: pytest.TempPathFactory, runs: list[list[bytes]]) -> None:
    """Whatever is appended over several starts is what is read, numbered without a gap."""
    directory = tmp_path_factory.mktemp("log")
    expected: list[bytes] = []
    for run in runs:
        opened = open_log(directory, LogSettings(delay_s=0.0))
        assert opened.writer.next_seq() == len(expected) + 1
        for payload in run:
            opened.writer.append(payload)
        expected += run
        opened.writer.close()
    assert list(LogReader(directory).records()) == list(enumerate(expected, 1))
