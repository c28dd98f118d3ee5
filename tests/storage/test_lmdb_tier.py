"""The LMDB tier on a disk that is full, damaged, shared, or gone."""

import multiprocessing
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

from mlxcel.ports import PieceCorrupt, PieceMissing
from storage.codec.piece import Encoded
from storage.errors import (
    SchemaNewerThanCode,
    StoreDamaged,
    StoredPieceCorrupt,
    StoredPieceMissing,
    StoreFull,
    StoreUnavailable,
    WrongProcess,
)
from storage.lmdb_tier.check import TierReport, check
from storage.lmdb_tier.compact import compact
from storage.lmdb_tier.environment import DATA_FILE, TierOptions
from storage.lmdb_tier.layout import CHUNK_BYTES, pack_entry, unpack_entry
from storage.lmdb_tier.tier import LmdbTier
from tests.storage.doubles import key_of, plain, some_parts

MIB = 1 << 20
OPTIONS = TierOptions(map_bytes=4 * MIB, max_map_bytes=256 * MIB, reserve_bytes=0)


def filled(directory: Path, count: int = 6, elements: int = 40_000) -> LmdbTier:
    tier = LmdbTier.open(directory, OPTIONS)
    for number in range(count):
        tier.write_group([(key_of(number), some_parts(number, elements))], [])
    return tier


def test_directory_and_files_are_private(tmp_path: Path) -> None:
    """The environment's directory has mode 0700, its files 0600, also under a path with spaces and Korean letters."""
    directory = tmp_path / "my 캐시"
    filled(directory, 1).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_the_map_grows_while_others_read(tmp_path: Path) -> None:
    """A map of 4 MiB takes 60 MiB of pieces while three threads read; every read is right."""
    tier = filled(tmp_path / "kv", 1)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if plain(tier.read(key_of(0))) != plain(some_parts(0, 40_000)):
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        tier.write_group([(key_of(number), some_parts(number, 300_000))], [])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert tier.stats()["map"] > OPTIONS.map_bytes
    assert len(tier.inventory()) == 30
    tier.close()


def fill_up(tier: LmdbTier) -> int:
    """Write pieces until one is refused as StoreFull; returns how many were taken."""
    for number in range(1_000):
        try:
            tier.write_group([(key_of(number), some_parts(number, 30_000 + 1_000 * (number % 7)))], [])
        except StoreFull:
            return number
    raise AssertionError("the map never filled up")


def test_a_full_map_refuses_and_then_frees_itself(tmp_path: Path) -> None:
    """At the map's limit a put is StoreFull and nothing changed; deletes still work and make room again."""
    tier = LmdbTier.open(tmp_path / "kv", TierOptions(map_bytes=2 * MIB, max_map_bytes=4 * MIB, reserve_bytes=0))
    number = fill_up(tier)
    assert set(tier.inventory()) == {key_of(n) for n in range(number)}
    for victim in range(number // 2):
        tier.write_group([], [key_of(victim)])
    tier.write_group([(key_of(1_000), some_parts(5, 30_000))], [])
    assert plain(tier.read(key_of(1_000))) == plain(some_parts(5, 30_000))
    assert tier.stats()["live"] == sum(tier.inventory().values())
    tier.close()


def test_a_reserve_stays_free_on_the_volume(tmp_path: Path) -> None:
    """A put that would touch the reserve is refused with the figures; a delete, and a put into free pages, is not."""
    tier = filled(tmp_path / "kv", 4)
    tier.close()
    free = shutil.disk_usage(tmp_path).free
    tier = LmdbTier.open(tmp_path / "kv", TierOptions(reserve_bytes=2 * free))
    with pytest.raises(StoreFull, match="reserve"):
        tier.write_group([(key_of(50), some_parts(1, 1_000_000))], [])
    tier.write_group([], [key_of(0), key_of(1)])
    tier.write_group([(key_of(51), some_parts(1, 10_000))], [])
    assert set(tier.inventory()) == {key_of(2), key_of(3), key_of(51)}
    tier.close()


def test_a_full_disk_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    """When the file may not grow the group fails whole; afterwards the tier reads, and writes again."""
    tier = filled(tmp_path / "kv", 2)
    size = tier.stats()["file"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, hard))
    try:
        with pytest.raises(StoreUnavailable):
            tier.write_group([(key_of(7), some_parts(7, 400_000))], [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(tier.inventory()) == {key_of(0), key_of(1)}
    assert plain(tier.read(key_of(1))) == plain(some_parts(1, 40_000))
    tier.write_group([(key_of(7), some_parts(7, 400_000))], [])
    assert plain(tier.read(key_of(7))) == plain(some_parts(7, 400_000))
    assert tier.stats()["live"] == sum(tier.inventory().values())
    tier.close()


def test_flips_in_a_piece_are_found(tmp_path: Path) -> None:
    """A flipped bit anywhere in a piece's pages is StoredPieceCorrupt for that piece, and the others read right."""
    filled(tmp_path / "kv").close()
    data = tmp_path / "kv" / DATA_FILE
    whole = data.read_bytes()
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    stored = bytes(tier.read_encoded(key_of(3)))
    tier.close()
    start = whole.index(stored[:4096])
    assert whole[start : start + len(stored)] == stored
    random_ = random.Random(5)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[start + random_.randrange(len(stored))] ^= 1 << random_.randrange(8)
        data.write_bytes(damaged)
        tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
        with pytest.raises(StoredPieceCorrupt):
            tier.read(key_of(3))
        assert plain(tier.read(key_of(2))) == plain(some_parts(2, 40_000))
        tier.close()


def test_bytes_that_are_no_piece_are_corrupt_and_can_be_deleted(tmp_path: Path) -> None:
    """A value overwritten by a terabyte frame, a damaged index entry, a lost chunk: corrupt, listed, removable."""
    filled(tmp_path / "kv", 4).close()
    env = lmdb.open(str(tmp_path / "kv"), max_dbs=8)
    index, data = env.open_db(b"index"), env.open_db(b"data")
    with env.begin(write=True) as txn:
        bomb = bytes.fromhex("28b52ffde06c06060663636363")
        txn.put(key_of(0) + bytes(4), bomb, db=data)
        txn.put(key_of(0), pack_entry(key_of(0), len(bomb)), db=index)
        txn.put(key_of(1), b"nonsense", db=index)
        txn.delete(key_of(2) + bytes(4), db=data)
        txn.put(key_of(8) + bytes(4), b"left over", db=data)
    env.close()
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    assert len(tier.inventory()) == 4
    assert set(check(tier).faulty) == {key_of(number) for number in range(3)}
    assert check(tier).orphans == {key_of(8)}
    for number in range(3):
        with pytest.raises(PieceCorrupt):
            tier.read(key_of(number))
    tier.write_group([], [key_of(number) for number in (0, 1, 2, 8)])
    assert set(tier.inventory()) == {key_of(3)}
    assert check(tier) == TierReport(1, tier.inventory()[key_of(3)], {}, frozenset())
    tier.close()
    env = lmdb.open(str(tmp_path / "kv"), max_dbs=8)
    with env.begin() as txn:
        assert {bytes(key)[:32] for key, _ in txn.cursor(env.open_db(b"data", txn=txn))} == {key_of(3)}
    env.close()


@pytest.mark.parametrize("length", [0, 100, 5_000, 20_000, 400_000])
def test_a_truncated_file_never_stops_the_start(tmp_path: Path, length: int) -> None:
    """A cut data file opens, or is set aside and begun anew; every read is right, missing or corrupt."""
    filled(tmp_path / "kv").close()
    os.truncate(tmp_path / "kv" / DATA_FILE, length)
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    for number in range(6):
        try:
            assert plain(tier.read(key_of(number))) == plain(some_parts(number, 40_000))
        except (StoredPieceMissing, StoredPieceCorrupt):
            continue
    tier.close()


def test_a_file_that_is_no_environment_is_set_aside(tmp_path: Path) -> None:
    """Garbage in the data file is renamed away with a number, a new environment begins, and the caller is told."""
    for number in (1, 2):
        directory = tmp_path / "kv"
        directory.mkdir(exist_ok=True)
        (directory / DATA_FILE).write_bytes(random.Random(1).randbytes(50_000))
        tier = LmdbTier.open(directory, OPTIONS)
        assert tier.set_aside is not None
        assert tier.set_aside.path == tmp_path / f"kv.damaged-{number}"
        assert tier.set_aside.reason
        assert (tier.set_aside.path / DATA_FILE).stat().st_size == 50_000
        assert tier.inventory() == {}
        tier.write_group([(key_of(1), some_parts(1))], [])
        tier.close()
        (directory / DATA_FILE).unlink()


def test_a_healthy_environment_is_not_set_aside(tmp_path: Path) -> None:
    """Opening again five times keeps every piece, also with a smaller map asked for."""
    filled(tmp_path / "kv").close()
    for _ in range(5):
        tier = LmdbTier.open(tmp_path / "kv", TierOptions(map_bytes=MIB, max_map_bytes=64 * MIB, reserve_bytes=0))
        assert tier.set_aside is None
        tier.write_group([(key_of(77), some_parts(77, 30_000))], [])
        assert len(tier.inventory()) == 7
        tier.close()


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    """An environment of a newer program raises SchemaNewerThanCode with both versions and keeps its data file."""
    filled(tmp_path / "kv", 1).close()
    env = lmdb.open(str(tmp_path / "kv"), max_dbs=8)
    with env.begin(write=True, db=env.open_db(b"meta")) as txn:
        txn.put(b"schema_version", b"99")
    env.close()
    before = (tmp_path / "kv" / DATA_FILE).read_bytes()
    for read_only in (False, True):
        with pytest.raises(SchemaNewerThanCode) as caught:
            LmdbTier.open(tmp_path / "kv", OPTIONS, read_only=read_only)
        assert (caught.value.found, caught.value.known) == (99, 1)
    assert (tmp_path / "kv" / DATA_FILE).read_bytes() == before


@pytest.mark.parametrize("harm", ["removed", "replaced", "cut", "directory removed"])
def test_a_file_lost_under_the_process_is_begun_anew(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A data file removed, replaced or cut costs what it held, is named in one line, and storing goes on."""
    tier = filled(tmp_path / "kv", 2)
    data = tmp_path / "kv" / DATA_FILE
    if harm == "removed":
        data.unlink()
    elif harm == "replaced":
        filled(tmp_path / "other", 1).close()
        os.replace(tmp_path / "other" / DATA_FILE, data)
    elif harm == "cut":
        os.truncate(data, 8192)
    else:
        shutil.rmtree(tmp_path / "kv")
    with pytest.raises(PieceMissing):
        tier.read(key_of(1))
    tier.write_group([(key_of(5), some_parts(5))], [])
    assert plain(tier.read(key_of(5))) == plain(some_parts(5))
    assert set(tier.inventory()) == ({key_of(0), key_of(5)} if harm == "replaced" else {key_of(5)})
    assert tier.losses == 1
    assert len([line for line in caplog.messages if "is lost" in line]) == 1
    tier.close()


def test_a_reading_tool_says_that_the_file_is_gone(tmp_path: Path) -> None:
    """A tier opened for reading begins nothing anew: it is unavailable."""
    filled(tmp_path / "kv", 2).close()
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS, read_only=True)
    os.rename(tmp_path / "kv" / DATA_FILE, tmp_path / "hidden")
    with pytest.raises(StoreUnavailable, match="removed"):
        tier.read(key_of(0))
    tier.close()


def _use_in_child(tier: LmdbTier, queue: "multiprocessing.queues.Queue[str]") -> None:
    try:
        tier.read(key_of(0))
        queue.put("read")
    except WrongProcess as error:
        queue.put(str(error))
    tier.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    """A child made by fork gets WrongProcess; the parent reads and writes on."""
    tier = filled(tmp_path / "kv", 1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_use_in_child, args=(tier, queue))
    child.start()
    assert "opened by process" in queue.get(timeout=10)
    child.join()
    assert plain(tier.read(key_of(0))) == plain(some_parts(0, 40_000))
    tier.write_group([(key_of(1), some_parts(1))], [])
    tier.close()


KILLED_READER = """
import lmdb, os, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=8, max_readers=4)
txn = env.begin()
os.kill(os.getpid(), 9)
"""


def test_slots_of_killed_readers_are_freed(tmp_path: Path) -> None:
    """With every reader slot taken by killed processes, a read still works."""
    options = TierOptions(map_bytes=4 * MIB, max_map_bytes=64 * MIB, reserve_bytes=0, max_readers=4)
    tier = LmdbTier.open(tmp_path / "kv", options)
    tier.write_group([(key_of(0), some_parts(0))], [])
    for _ in range(5):
        subprocess.run([sys.executable, "-c", KILLED_READER, str(tmp_path / "kv")], check=False, timeout=20)
    assert plain(tier.read(key_of(0))) == plain(some_parts(0))
    tier.close()


READER = """
import sys
from pathlib import Path
from storage.lmdb_tier.tier import LmdbTier
tier = LmdbTier.open(Path(sys.argv[1]), read_only=True)
print(len(tier.inventory()), flush=True)
for line in sys.stdin:
    print(len(tier.inventory()), sum(len(part.data) for part in tier.read(bytes.fromhex(line.strip()))), flush=True)
"""


def test_a_read_only_tool_reads_alongside_a_growing_map(tmp_path: Path) -> None:
    """Another process opened for reading follows a map that this one grows, and can't write."""
    tier = filled(tmp_path / "kv", 2)
    child = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "kv")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline().split() == ["2"]
    tier.write_group([(key_of(n), some_parts(n, 1_000_000)) for n in range(2, 5)], [])
    child.stdin.write(key_of(4).hex() + "\n")
    child.stdin.flush()
    assert child.stdout.readline().split() == ["5", "8000004"]
    child.stdin.close()
    child.stdout.close()
    assert child.wait(20) == 0
    tier.close()
    reader = LmdbTier.open(tmp_path / "kv", OPTIONS, read_only=True)
    with pytest.raises(StoreUnavailable, match="reading"):
        reader.write_group([], [key_of(0)])
    reader.close()


def test_read_only_of_garbage_or_nothing_reports_and_changes_nothing(tmp_path: Path) -> None:
    """Opening for reading never sets anything aside and creates nothing."""
    with pytest.raises(StoreUnavailable):
        LmdbTier.open(tmp_path / "none", OPTIONS, read_only=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / DATA_FILE).write_bytes(random.Random(2).randbytes(9_000))
    with pytest.raises(StoreDamaged):
        LmdbTier.open(tmp_path / "kv", OPTIONS, read_only=True)
    assert (tmp_path / "kv" / DATA_FILE).exists()


def test_a_path_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    """A file where the directory should be is StoreUnavailable naming it, and is not set aside."""
    (tmp_path / "kv").write_text("hello")
    with pytest.raises(StoreUnavailable, match="kv"):
        LmdbTier.open(tmp_path / "kv", OPTIONS)
    assert (tmp_path / "kv").read_text() == "hello"


def test_compacting_shrinks_and_keeps_every_piece(tmp_path: Path) -> None:
    """After most pieces are deleted compacting gives their pages back; the rest reads the same."""
    tier = filled(tmp_path / "kv", 12)
    tier.write_group([], [key_of(n) for n in range(9)])
    live = tier.stats()["live"]
    tier.close()
    (tmp_path / "kv" / "compacting.tmp").mkdir()
    before, after = compact(tmp_path / "kv", OPTIONS)
    assert after < before / 2
    assert after < live * 1.2 + 65_536
    assert {path.name for path in (tmp_path / "kv").iterdir()} <= {DATA_FILE, "lock.mdb"}
    assert stat.S_IMODE((tmp_path / "kv" / DATA_FILE).stat().st_mode) == 0o600
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    for number in range(9, 12):
        assert plain(tier.read(key_of(number))) == plain(some_parts(number, 40_000))
    tier.close()


def test_free_pages_are_used_again(tmp_path: Path) -> None:
    """Turning over three times the capacity, in order and at random, leaves the file at most 1.2 x the live bytes."""
    tier = LmdbTier.open(tmp_path / "kv", TierOptions(map_bytes=512 * MIB, reserve_bytes=0))
    random_ = random.Random(1)
    capacity, content = 128 * MIB, memoryview(bytes(4 * MIB))
    live: dict[bytes, int] = {}
    written = highest = 0
    while written < 4 * capacity:
        key, size = key_of(written), random_.randrange(200_000, 4 * MIB)
        victims = []
        while sum(live.values()) + size > capacity:
            victims.append(random_.choice([next(iter(live)), random_.choice(list(live))]))
            del live[victims[-1]]
        tier.write_encoded([(key, Encoded(content[:size], size))], victims)
        live[key] = size
        written += size
        highest = max(highest, sum(live.values()))
    assert tier.inventory() == live
    assert tier.stats()["file"] <= 1.2 * highest
    tier.close()


def test_index_entries_check_themselves() -> None:
    """An index entry is read back; under another key, with any byte changed or another length it is refused."""
    packed = pack_entry(key_of(1), 3 * CHUNK_BYTES + 1)
    entry = unpack_entry(key_of(1), packed)
    assert entry is not None
    assert (entry.stored_bytes, entry.chunks) == (3 * CHUNK_BYTES + 1, 4)
    assert unpack_entry(key_of(2), packed) is None
    assert unpack_entry(key_of(1), packed[:-1]) is None
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 1
        assert unpack_entry(key_of(1), bytes(damaged)) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_outlive_the_next_read(tmp_path: Path, dtype: str) -> None:
    """What one read returned stays as it is when the same thread reads other pieces, of every coding."""
    tier = LmdbTier.open(tmp_path, OPTIONS)
    pieces = {key_of(n): some_parts(n, 9_000 - 1_000 * n, dtype) for n in range(4)}
    tier.write_group(list(pieces.items()), [])
    read = {key: tier.read(key) for key in pieces}
    assert {key: plain(parts) for key, parts in read.items()} == {key: plain(parts) for key, parts in pieces.items()}
    tier.close()
