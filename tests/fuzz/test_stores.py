"""The log's files and the disk tier's pieces, spoiled by chance and by design: damage is named, memory is bounded."""

import contextlib
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.ports import Part
from storage.codec import piece
from storage.errors import LogCorrupt, LogNewerThanCode, StoredPieceCorrupt
from storage.event_log import frame
from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log
from storage.event_log.segment import SegmentFile, read_bytes
from storage.lmdb_tier.layout import pack_entry, unpack_entry
from tests.fuzz.mutate import ODD, spoil_bytes, spoil_value

ROOT = Path(__file__).resolve().parents[2]
SEEDS = st.integers(0, 2**32)
KEY = bytes(range(32))


def encoded() -> bytes:
    """Return a small piece of three dtypes."""
    rng = np.random.default_rng(3)
    parts = []
    for name, dtype, width in (("k", "bfloat16", 2), ("v", "bfloat16", 2), ("s", "float32", 4), ("q", "uint8", 1)):
        data = rng.normal(size=(4, 40)).astype("<f4").view(np.uint8).reshape(-1)[: 160 * width].copy()
        parts.append(Part(name, dtype, (4, 40), memoryview(data)))
    return bytes(piece.encode(KEY, parts).data)


PIECE = encoded()


def sealed(rng: random.Random) -> bytes:
    """Return a piece with a spoiled header or body whose lengths and checksum are right all the same."""
    header_bytes = piece.PRELUDE.unpack_from(PIECE)[4]
    start = piece.PRELUDE.size
    header, body = PIECE[start : start + header_bytes], PIECE[start + header_bytes :]
    if rng.random() < 0.6:
        try:
            header = msgspec.msgpack.encode(spoil_value(rng, msgspec.msgpack.decode(header), 2))
        except OverflowError:
            header = msgspec.msgpack.encode(ODD[3:8])
    else:
        body = spoil_bytes(rng, body)
    length = start + len(header) + len(body)
    raw = bytearray(piece.PRELUDE.pack(piece.MAGIC, bytes(16), piece.VERSION, 0, len(header), length) + header + body)
    raw[4:20] = xxhash.xxh3_128(KEY + bytes(raw[20:])).digest()
    return bytes(raw)


@settings(max_examples=1000)
@given(SEEDS)
def test_a_sealed_piece_with_a_wrong_content_is_corrupt_or_bytes(seed: int) -> None:
    """A piece that someone resealed decodes to parts of the sizes it says, or is StoredPieceCorrupt; nothing else."""
    try:
        parts = piece.decode(KEY, sealed(random.Random(seed)))
    except StoredPieceCorrupt:
        return
    assert sum(len(part.data) for part in parts) <= 4 * len(PIECE)


@settings(max_examples=400)
@given(SEEDS)
def test_spoiled_bytes_are_corrupt(seed: int) -> None:
    """Without a new seal any change is found, in pieces and in index entries."""
    rng = random.Random(seed)
    data = spoil_bytes(rng, PIECE)
    if data != PIECE:
        with pytest.raises(StoredPieceCorrupt):
            piece.decode(KEY, data)
    entry = pack_entry(KEY, 1234)
    other = spoil_bytes(rng, entry)
    assert other == entry or unpack_entry(KEY, other) is None


@settings(max_examples=1000)
@given(SEEDS)
def test_frames_are_what_was_written_or_broken(seed: int) -> None:
    """Scanning spoiled frames yields a prefix of the records, then Broken; looking for a whole record always ends."""
    rng = random.Random(seed)
    data, previous, payloads = b"", 7, []
    for seq in range(1, 6):
        payload = rng.randbytes(rng.choice((0, 1, 30, 200)))
        head, previous = frame.build(payload, seq, previous, 0)
        data, payloads = data + head + payload, [*payloads, payload]
    bad = spoil_bytes(rng, data)
    read = []
    with contextlib.suppress(frame.Broken):
        for _, _, start, end in frame.scan(bad, 0, 7, 1):
            read.append(bad[start + frame.HEADER_BYTES : end])
    assert read == payloads[: len(read)]
    frame.WholeRecords(bad).next(1)


def log_files(directory: Path) -> list[Path]:
    """Write a log of a few segments; returns its files."""
    opened = open_log(directory)
    opened.writer.open_segment(b"checkpoint")
    for number in range(30):
        opened.writer.append(b"%d" % number * (number % 7 + 1))
        if number % 10 == 9:
            opened.writer.open_segment(b"checkpoint")
    opened.writer.close()
    return sorted(path for path in directory.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, bytes]]:
    """Return the files of a small log."""
    return [(path.name, path.read_bytes()) for path in log_files(tmp_path_factory.mktemp("log") / "log")]


@settings(max_examples=250)
@given(SEEDS)
def test_a_spoiled_log_opens_or_is_corrupt(
    log: list[tuple[str, bytes]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """With files spoiled, emptied, removed or renamed, reading and opening work or say LogCorrupt."""
    rng = random.Random(seed)
    directory = tmp_path_factory.mktemp("spoiled", numbered=True)
    at = rng.randrange(len(log))
    for number, (name, data) in enumerate(log):
        if number == at:
            kind = rng.randrange(5)
            data = b"" if kind == 0 else spoil_bytes(rng, data)
            name = name.replace(".log", ".log.zst") if kind == 1 else name
            if kind == 2:
                continue
        (directory / name).write_bytes(data)
    with contextlib.suppress(LogCorrupt, LogNewerThanCode):
        LogReader(directory).verify()
        open_log(directory).writer.close()


BOMBS = {
    "claims a terabyte": bytes.fromhex("28b52ffde06c06060663636363"),
    "no size": zstandard.ZstdCompressor().compressobj().compress(b"") + zstandard.compress(bytes(1 << 20))[:40],
    "a gigabyte of zeros behind another": zstandard.compress(b"x") + zstandard.compress(bytes(1 << 26)) * 16,
    "zeros beyond the size": zstandard.compress(bytes(1 << 26)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_decompression_is_bounded(bomb: str, tmp_path: Path) -> None:
    """A piece and a segment whose frames give more than they should cost no memory beyond what is written of their size."""
    body = BOMBS[bomb]
    header = msgspec.msgpack.encode([[["k", "uint8", [64]]], [["uint8", "zstd", 64, len(body)]]])
    raw = bytearray(piece.PRELUDE.pack(piece.MAGIC, bytes(16), 1, 0, len(header), 36 + len(header) + len(body)))
    raw += header + body
    raw[4:20] = xxhash.xxh3_128(KEY + bytes(raw[20:])).digest()
    path = tmp_path / "00000000000000000001.log.zst"
    path.write_bytes(body)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoredPieceCorrupt):
        piece.decode(KEY, bytes(raw))
    if "zeros beyond" not in bomb:
        with pytest.raises(LogCorrupt):
            read_bytes(SegmentFile(1, path, True))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 256 << 20


WITNESS = """
import os, sys
sys.path.insert(0, {root!r})
seen = []
sys.addaudithook(lambda name, args: seen.append(name) if name in {watched!r} else None)
from pathlib import Path
from ops.replay.source import read_log
from storage.event_log.recovery import open_log
from storage.lmdb_tier.tier import LmdbTier
from mlxcel.service.recover import fold_log
seen.clear()
place = Path({place!r})
def fold():
    opened = open_log(place / "log")
    fold_log(opened.checkpoint, opened.tail)
for attempt in (lambda: list(read_log(place)), fold, lambda: LmdbTier.open(place / "kv").inventory()):
    try:
        attempt()
    except Exception as fault:
        print(type(fault).__name__)
print("ran", seen, os.path.exists({flag!r}))
"""


def test_a_hostile_directory_executes_nothing(tmp_path: Path) -> None:
    """Pickles, code and odd names in place of log, store and checkpoint run nothing: no process, no socket, no pickle."""
    place, flag = tmp_path / "data", tmp_path / "flag"
    for name in ("log", "kv"):
        (place / name).mkdir(parents=True)
    pickled = b"cposix\nsystem\n(S'touch " + os.fsencode(flag) + b"'\ntR."
    files = log_files(tmp_path / "honest")
    for path in files:
        (place / "log" / path.name).write_bytes(path.read_bytes().replace(b"checkpoint", pickled[:10]))
    (place / "log" / "manifest.json").write_bytes(pickled)
    (place / "log" / "sitecustomize.py").write_text(f"open({str(flag)!r}, 'w')")
    (place / "kv" / "data.mdb").write_bytes(pickled * 500)
    (place / "kv" / "$(touch flag);.log").write_bytes(pickled)
    (place / "digests.json").write_bytes(pickled)
    watched = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class")
    script = WITNESS.format(root=str(ROOT), place=str(place), flag=str(flag), watched=watched)
    done = subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ran [] False"
