"""The event log on damaged files: a torn tail is cut once, everything else stops with position and reason."""

import hashlib
import os
import resource
import shutil
from pathlib import Path

import pytest

from storage.errors import LogCorrupt, LogNewerThanCode, LogUnavailable
from storage.event_log import frame, manifest
from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log
from storage.event_log.segment import HEADER_BYTES, SegmentHeader, list_segments, name_for, pack_header
from storage.event_log.settings import LogSettings
from tests.storage.test_log import fill

PLAIN = LogSettings(segment_bytes=2_000, delay_s=0.0, compress_level=0)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir() if path.is_file()}


def one_segment(directory: Path, payloads: list[bytes]) -> list[tuple[int, bytes]]:
    """Write a checkpoint and records, each in a group of its own."""
    opened = open_log(directory, PLAIN)
    written = [(opened.writer.open_segment(b"checkpoint"), b"checkpoint")]
    for payload in payloads:
        written.append((opened.writer.append(payload), payload))
        assert opened.writer.wait_durable(written[-1][0], 10)
    opened.writer.close()
    return written


PAYLOADS = ["안녕하세요".encode(), b"two", b"the last one, \xea\xb0"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, bytes]]]:
    directory = tmp_path_factory.mktemp("healthy") / "log"
    return directory, one_segment(directory, PAYLOADS)


def copy_of(healthy: Path, target: Path) -> Path:
    shutil.copytree(healthy, target)
    return target / name_for(1)


def test_cut_at_every_byte_of_the_last_record(healthy: tuple[Path, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    """For every cut inside the last record the start keeps the rest, keeps a copy of the cut, and goes on numbering."""
    source, written = healthy
    whole = (source / name_for(1)).read_bytes()
    last = len(whole) - frame.HEADER_BYTES - len(PAYLOADS[-1])
    for length in range(last, len(whole)):
        directory = tmp_path / str(length)
        segment = copy_of(source, directory)
        os.truncate(segment, length)
        opened = open_log(directory, PLAIN)
        assert list(opened.tail) == written[1:-1]
        if length == last:
            assert opened.cut is None
        else:
            assert opened.cut is not None
            assert (opened.cut.offset, opened.cut.cut_bytes) == (last, length - last)
            assert opened.cut.copy.read_bytes() == whole[last:length]
        assert opened.writer.append(b"after") == written[-1][0]
        opened.writer.close()
        assert segment.read_bytes()[:last] == whole[:last]
        again = open_log(directory, PLAIN)
        assert again.cut is None
        assert list(again.tail) == [*written[1:-1], (written[-1][0], b"after")]
        again.writer.close()


def test_flip_at_every_byte_of_the_last_record(healthy: tuple[Path, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    """A flipped byte anywhere in the last record never yields a wrong record: the record is gone, the rest stands."""
    source, written = healthy
    whole = (source / name_for(1)).read_bytes()
    last = len(whole) - frame.HEADER_BYTES - len(PAYLOADS[-1])
    directory = tmp_path / "log"
    segment = copy_of(source, directory)
    for position in range(last, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        segment.write_bytes(damaged)
        reader = LogReader(directory)
        assert list(reader.records()) == written[:-1]
        assert reader.torn is not None
        assert reader.torn.offset == last


def test_flip_at_every_byte_of_a_middle_record(healthy: tuple[Path, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    """A flipped byte in a finished record stops the start with file and position, and no file is touched."""
    source, _ = healthy
    whole = (source / name_for(1)).read_bytes()
    start = whole.index("안".encode()) - frame.HEADER_BYTES
    end = start + frame.HEADER_BYTES + len(PAYLOADS[0])
    directory = tmp_path / "log"
    segment = copy_of(source, directory)
    for position in range(start, end):
        damaged = bytearray(whole)
        damaged[position] ^= 0x01
        segment.write_bytes(damaged)
        before = digests(directory)
        with pytest.raises(LogCorrupt) as caught:
            open_log(directory, PLAIN)
        assert (caught.value.file, caught.value.offset) == (segment, start)
        report = LogReader(directory).verify()
        assert isinstance(report.fault, LogCorrupt)
        assert (report.records, report.fault.offset) == (1, start)
        assert digests(directory) == before


def test_flip_within_the_newest_group_is_damage_not_a_tail(tmp_path: Path) -> None:
    """A flipped bit before whole records of the same group stops the start, since they may have been durable."""
    opened = open_log(tmp_path, LogSettings(delay_s=0.05))
    for number in range(20):
        opened.writer.append(b"record %d" % number)
    opened.writer.close()
    segment = tmp_path / name_for(1)
    data = bytearray(segment.read_bytes())
    data[data.index(b"record 7")] ^= 0x20
    segment.write_bytes(data)
    with pytest.raises(LogCorrupt, match=frame.BAD_CHECKSUM):
        open_log(tmp_path)


def test_an_unwritten_page_in_the_newest_group_is_a_torn_tail(tmp_path: Path) -> None:
    """After a power cut the pages of the last write may be there but for one, which reads as zeros: it is cut there."""
    one_segment(tmp_path, [b"durable"])
    opened = open_log(tmp_path, LogSettings(delay_s=0.05))
    for _ in range(40):
        opened.writer.append(b"x" * 300)
    opened.writer.close()
    segment = tmp_path / name_for(1)
    data = bytearray(segment.read_bytes())
    data[4096:8192] = bytes(4096)
    segment.write_bytes(data)
    opened = open_log(tmp_path)
    assert opened.cut is not None
    kept = list(opened.tail)
    assert kept[0] == (2, b"durable")
    assert 10 < len(kept) < 20
    opened.writer.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda records: [records[0], records[2]], frame.BROKEN_CHAIN),
        (lambda records: [records[0], records[2], records[1]], frame.BROKEN_CHAIN),
        (lambda records: [records[0], records[1], records[1], records[2]], frame.BROKEN_CHAIN),
    ],
)
def test_whole_records_in_the_wrong_place_are_found(tmp_path: Path, change, reason: str) -> None:  # type: ignore[no-untyped-def]
    """A record left out, swapped or doubled breaks the chain though each checksum holds."""
    one_segment(tmp_path, [b"a", b"b"])
    segment = tmp_path / name_for(1)
    data = segment.read_bytes()
    records = [data[start:end] for _, _, start, end in frame.scan(data, HEADER_BYTES, 0, 1)]
    segment.write_bytes(data[:HEADER_BYTES] + b"".join(change(records)))
    report = LogReader(tmp_path).verify()
    where = report.fault or report.torn
    assert where is not None
    assert where.reason == reason


def test_a_wrong_number_with_a_right_chain_is_found() -> None:
    """A record that follows its predecessor but skips a number is refused."""
    header, checksum = frame.build(b"a", 1, 0, 0)
    second, _ = frame.build(b"b", 3, checksum, 0)
    with pytest.raises(frame.Broken, match=frame.BAD_SEQUENCE):
        list(frame.scan(header + b"a" + second + b"b", 0, 0, 1))


def test_a_segment_made_of_beginnings_costs_a_few_passes(tmp_path: Path) -> None:
    """Bytes of which every other few claim to be a record up to the end are read a bounded number of times, as damage."""
    ends, step = 1 << 20, 26
    crafted = bytearray()
    while len(crafted) < ends:
        length = ends - len(crafted) - frame.HEADER_BYTES
        crafted += frame.HEADER.pack(frame.MAGIC, 1, 0, max(0, length), 0, 9) + bytes(step - frame.HEADER_BYTES)
    search = frame.WholeRecords(bytes(crafted))
    with pytest.raises(frame.TooManyBeginnings):
        search.next(1)
    assert search.checked_bytes < (frame.WholeRecords.MOST_PASSES + 3) * len(crafted)
    one_segment(tmp_path, [b"whole"])
    segment = tmp_path / name_for(1)
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"!" + crafted)
    with pytest.raises(LogCorrupt, match=frame.BAD_MAGIC):
        open_log(tmp_path)
    assert segment.read_bytes() == whole + b"!" + crafted


def test_the_newest_segment_missing_is_damage(tmp_path: Path) -> None:
    """The newest segment deleted stops the start, since what it held is unknown, and nothing else is touched."""
    fill(tmp_path, 200, PLAIN)
    list_segments(tmp_path)[-1].path.unlink()
    before = digests(tmp_path)
    with pytest.raises(LogCorrupt, match="missing"):
        open_log(tmp_path, PLAIN)
    assert LogReader(tmp_path).verify().fault is not None
    assert digests(tmp_path) == before


def test_a_segment_missing_after_the_newest_checkpoint_is_damage(tmp_path: Path) -> None:
    """Where no checkpoint stands behind the gap, the state needs what is gone."""
    settings = LogSettings(segment_bytes=2_000, delay_s=0.0, compress_level=0)
    opened = open_log(tmp_path, settings)
    opened.writer.open_segment(b"checkpoint")
    for _ in range(3):
        opened.writer.append(b"x" * 100)
        opened.writer.open_segment(b"checkpoint")
    opened.writer.close()
    segments = list_segments(tmp_path)
    for segment in segments[1:]:  # the checkpoints that open these can't be read any more
        data = bytearray(segment.path.read_bytes())
        data[HEADER_BYTES + 30] ^= 1
        segment.path.write_bytes(data)
    segments[0].path.unlink()
    with pytest.raises(LogCorrupt):
        open_log(tmp_path, settings)


@pytest.mark.parametrize("which", ["middle", "first"])
def test_an_older_segment_missing_costs_history_alone(tmp_path: Path, which: str) -> None:
    """Without an older segment the log opens from its newest checkpoint, names the lost one once, and goes on."""
    written = fill(tmp_path, 200, PLAIN)
    segments = list_segments(tmp_path)
    lost = segments[{"middle": len(segments) // 2, "first": 0}[which]]
    lost.path.unlink()
    newest = segments[-1].first_seq
    assert isinstance(LogReader(tmp_path).verify().fault, LogCorrupt)
    assert list(LogReader(tmp_path).records(newest - 1)) == [row for row in written if row[0] >= newest]
    with pytest.raises(LogCorrupt, match="missing"):
        list(LogReader(tmp_path).records(lost.first_seq - 1))
    opened = open_log(tmp_path, PLAIN)
    assert opened.lost == (lost.first_seq,)
    assert (opened.checkpoint_seq, opened.checkpoint) == written[newest - 1]
    assert list(opened.tail) == written[newest:]
    opened.writer.close()
    again = open_log(tmp_path, PLAIN)
    assert again.lost == ()
    again.writer.close()
    whole = LogReader(tmp_path).verify().fault is None
    assert whole == (which == "first"), "a gap inside stays damage for whoever reads it all; a later beginning does not"


def test_a_missing_middle_segment_is_found_without_the_manifest(tmp_path: Path) -> None:
    """With the manifest gone too, the numbers show the gap."""
    fill(tmp_path, 200, PLAIN)
    (tmp_path / manifest.NAME).unlink()
    list_segments(tmp_path)[2].path.unlink()
    with pytest.raises(LogCorrupt, match="are missing before this segment"):
        list(LogReader(tmp_path).records())


def test_damage_in_a_sealed_segment_is_reported_with_its_place(tmp_path: Path) -> None:
    """Verify names file and offset of damage in a sealed segment, plain or compressed, and reads up to it."""
    fill(tmp_path, 200, PLAIN)
    segment = list_segments(tmp_path)[1].path
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 4
    segment.write_bytes(data)
    fault = LogReader(tmp_path).verify().fault
    assert isinstance(fault, LogCorrupt)
    assert fault.file == segment
    assert 0 < fault.offset <= len(data) // 2


def test_a_damaged_compressed_segment_is_damage(tmp_path: Path) -> None:
    """A flip, a cut, an appended byte and a frame that claims a terabyte in a compressed segment are LogCorrupt."""
    fill(tmp_path, 200, PLAIN)
    opened = open_log(tmp_path, LogSettings(segment_bytes=2_000))
    from tests.storage.test_log import wait_for_upkeep

    wait_for_upkeep(tmp_path)
    opened.writer.close()
    segment = list_segments(tmp_path)[1].path
    whole = segment.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    for damaged in (bytes(flipped), whole[:-9], whole + b"x", b"", bytes.fromhex("28b52ffde06c06060663636363")):
        segment.write_bytes(damaged)
        with pytest.raises(LogCorrupt):
            list(LogReader(tmp_path).records())


def test_a_segment_whose_birth_was_torn_is_taken_back(tmp_path: Path) -> None:
    """A crash while a segment is begun leaves part of its header or checkpoint: writing goes on in the one before."""
    written = fill(tmp_path, 100, PLAIN)
    next_seq = written[-1][0] + 1
    header = pack_header(SegmentHeader(next_seq, 0, 0))
    for content in (b"", header[:10], header, header + frame.build(b"c" * 50, next_seq, 0, 1)[0] + b"ccc"):
        torn = tmp_path / name_for(next_seq)
        torn.write_bytes(content)
        assert list(LogReader(tmp_path).records()) == written
        opened = open_log(tmp_path, PLAIN)
        assert opened.cut is not None
        assert opened.writer.append(b"more") == next_seq
        opened.writer.close()
        written.append((next_seq, b"more"))
        next_seq += 1
        assert list(LogReader(tmp_path).records()) == written


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Unknown files, an entry-like directory and a dangling link don't hinder the start and are not deleted."""
    fill(tmp_path, 20, PLAIN)
    (tmp_path / "README").write_text("hello")
    (tmp_path / name_for(999)).mkdir()
    (tmp_path / name_for(998)).symlink_to(tmp_path / "nowhere")
    names = set(os.listdir(tmp_path))
    opened = open_log(tmp_path, PLAIN)
    opened.writer.close()
    assert names <= set(os.listdir(tmp_path))


def test_a_newer_frame_version_is_refused_untouched(tmp_path: Path) -> None:
    """A segment of a newer program is refused by version, and the files stay as they are."""
    tmp_path.chmod(0o700)
    (tmp_path / name_for(1)).write_bytes(pack_header(SegmentHeader(1, 0, 0, version=9)) + b"whatever")
    before = digests(tmp_path)
    with pytest.raises(LogNewerThanCode) as caught:
        open_log(tmp_path)
    assert (caught.value.found, caught.value.known) == (9, 1)
    assert digests(tmp_path) == before


def test_a_full_disk_fails_the_log_and_nothing_blocks(tmp_path: Path) -> None:
    """When a write fails, appending raises LogUnavailable with the reason, waiting ends, durable records stay."""
    opened = open_log(tmp_path, LogSettings(delay_s=0.0))
    opened.writer.append(b"kept")
    assert opened.writer.wait_durable(1, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        seq = opened.writer.append(bytes(50_000))
        assert not opened.writer.wait_durable(seq, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(LogUnavailable, match="File too large"):
        opened.writer.append(b"refused")
    assert opened.writer.failed
    assert not opened.writer.wants_checkpoint()
    with pytest.raises(LogUnavailable):
        opened.writer.close()
    again = open_log(tmp_path)
    assert list(again.tail) == [(1, b"kept")]
    assert again.writer.append(b"later") == 2
    again.writer.close()


def test_too_much_waiting_fails_the_log(tmp_path: Path) -> None:
    """Records that pile up beyond the limit fail the log instead of filling the memory."""
    opened = open_log(tmp_path, LogSettings(delay_s=5.0, pending_bytes=10_000))
    for _ in range(10):
        opened.writer.append(bytes(1_000))
    with pytest.raises(LogUnavailable, match="too slow"):
        opened.writer.append(bytes(1_000))
    assert opened.writer.failed
    with pytest.raises(LogUnavailable):
        opened.writer.close()
