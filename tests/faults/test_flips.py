"""Bytes flipped in the store's file under bytes that a later request reads: each is found and named, none changes an answer.

The flips happen in a child process, since a damaged page of LMDB's own may end the process that reads it.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.lmdb_tier.environment import DATA_FILE
from storage.lmdb_tier.tier import LmdbTier
from tests.e2e.daemon import ROOT, Daemon, cached, environment
from tests.faults.support import ALWAYS, Tiny, ask, ask_cold, prompt, said, same

CHILD = """
import json, os, random, sys, threading
from pathlib import Path
from mlxcel.ports import PieceCorrupt
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.restore import RestorePool
from tests.storage.doubles import key_of, plain, some_parts

folder, flips, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
tier = LmdbTier.open(folder, TierOptions(map_bytes=1 << 26, reserve_bytes=0))
sizes = [40, 700, 3_000]
dtypes = ["bfloat16", "float32"]
pieces = {key_of(n): some_parts(n, sizes[n % 3], dtypes[n % 2]) for n in range(24)}
tier.write_group(list(pieces.items()), [])
tier.sync()
raw = (folder / "data.mdb").read_bytes()
where = {key: raw.index(bytes(tier.read_encoded(key))) for key in pieces}
length = {key: len(tier.read_encoded(key)) for key in pieces}
pool = RestorePool(tier)
reads = [0]
real = tier.read_encoded
def counted(key):
    reads[0] += 1
    return real(key)
tier.read_encoded = counted

def ask(key):
    done, answer = threading.Event(), []
    pool.start([key], lambda index, parts, taken: answer.append(parts), lambda fault: (answer.append(fault), done.set()))
    done.wait(30)
    return answer[0]

found = named = wrong = 0
fd = os.open(folder / "data.mdb", os.O_RDWR)
keys = sorted(pieces)
for _ in range(flips):
    key = rng.choice(keys)
    at = where[key] + rng.randrange(length[key])
    os.pwrite(fd, bytes([raw[at] ^ rng.randrange(1, 256)]), at)
    answer = ask(key)
    if isinstance(answer, PieceCorrupt):
        found += 1
        named += answer.key == key and key.hex()[:16] in str(answer)
    elif plain(answer) != plain(pieces[key]):
        wrong += 1
    os.pwrite(fd, raw[at:at + 1], at)
healthy = sum(plain(ask(key)) == plain(pieces[key]) for key in keys)
pool.close()
print(json.dumps(dict(found=found, named=named, wrong=wrong, reads=reads[0], healthy=healthy)))
"""

TREE_CHILD = """
import json, os, random, sys
from pathlib import Path
from mlxcel.ports import PieceCorrupt, PieceMissing, TierUnavailable
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from tests.storage.doubles import key_of, plain, some_parts

folder, flips, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
options = TierOptions(map_bytes=1 << 26, reserve_bytes=0)
tier = LmdbTier.open(folder, options)
pieces = {key_of(n): some_parts(n, 3_000) for n in range(24)}
tier.write_group(list(pieces.items()), [])
tier.close()
file = folder / "data.mdb"
raw = file.read_bytes()
# A page header: number, 16 pad bits, flags (1 branch, 2 leaf, 4 overflow, 8 meta).
tree = [p for p in range(0, len(raw), 4096) if int.from_bytes(raw[p + 10 : p + 12], "little") & 3
        and int.from_bytes(raw[p : p + 8], "little") == p // 4096]
right = lost = died = wrong = 0
for _ in range(flips):
    bad = bytearray(raw)
    at = rng.choice(tree) + rng.randrange(4096)
    bad[at] ^= rng.randrange(1, 256)
    file.write_bytes(bad)
    child = os.fork()
    if child == 0:
        code = 0
        try:
            again = LmdbTier.open(folder, options, read_only=True)
            for key in pieces:
                try:
                    if plain(again.read(key)) != plain(pieces[key]):
                        code = 2
                except (PieceCorrupt, PieceMissing):
                    code = code or 1
        except TierUnavailable:
            code = code or 1
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            code = 3
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        died += 1
    else:
        code = os.WEXITSTATUS(status)
        right, lost, wrong = right + (code == 0), lost + (code == 1), wrong + (code >= 2)
print(json.dumps(dict(right=right, lost=lost, died=died, wrong=wrong, pages=len(tree))))
"""


def run(script: str, folder: Path, flips: int) -> dict[str, int]:
    """Run a child and return its figures."""
    command = [sys.executable, "-c", script, str(folder), str(flips), "1"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize("flips", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_flips_in_pieces_are_found_and_named(flips: int, tmp_path: Path) -> None:
    """Every byte flipped in a stored piece that is then read is found, with the piece's name; healed bytes read again."""
    figures = run(CHILD, tmp_path / "kv", flips)
    print(figures)
    assert figures == {"found": flips, "named": flips, "wrong": 0, "reads": flips + 24, "healthy": 24}


@pytest.mark.parametrize("flips", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_flips_in_the_tree_never_give_wrong_bytes(flips: int, tmp_path: Path) -> None:
    """Bytes flipped in LMDB's own pages lose pieces at worst: whatever is read back is right."""
    figures = run(TREE_CHILD, tmp_path / "kv", flips)
    assert figures["wrong"] == 0
    assert figures["right"] + figures["lost"] + figures["died"] == flips
    print(figures)


FOUND = ("could not be read back", "a check found damage")


def places(data: Path) -> dict[str, tuple[list[int], int]]:
    """Return key (hex) -> offsets in the store's file and length of every stored piece. Freed pages may hold older copies."""
    raw = (data / "kv" / DATA_FILE).read_bytes()
    tier = LmdbTier.open(data / "kv", read_only=True)
    try:
        pieces = {key.hex(): bytes(tier.read_encoded(key)) for key in tier.inventory()}
    finally:
        tier.close()
    return {key: (list(found(raw, piece)), len(piece)) for key, piece in pieces.items()}


def found(raw: bytes, piece: bytes) -> Iterator[int]:
    """Yield every offset at which the piece lies."""
    at = raw.find(piece)
    while at >= 0:
        yield at
        at = raw.find(piece, at + 1)


def chains(daemon: Daemon) -> dict[int, list[str]]:
    """Return entry -> keys of its pieces, which are named by content and stay the same when they are computed again."""
    rows = daemon.http.get("/admin/entries", params={"limit": 500}).json()["entries"]
    shown = [daemon.http.get(f"/admin/entries/{row['entry']}").json() for row in rows]
    return {one["entry"]: [piece["key"] for piece in one["chain"]] for one in shown}


def flip_one_of_each(daemon: Daemon, rng: random.Random, known: list[list[str]]) -> list[str]:
    """Take every entry out of memory and flip a byte in one of its pieces on disk; returns those pieces' keys."""
    for row in daemon.http.get("/admin/entries", params={"limit": 500}).json()["entries"]:
        assert daemon.http.post(f"/admin/entries/{row['entry']}/demote").status_code == 200
    assert daemon.stats()["bytes"] == 0
    where, keys = places(daemon.data_dir), [rng.choice(chain) for chain in known]
    fd = os.open(daemon.data_dir / "kv" / DATA_FILE, os.O_RDWR)
    try:
        for key in keys:
            inside, flip = rng.randrange(where[key][1]), rng.randrange(1, 256)
            for start in where[key][0]:
                os.pwrite(fd, bytes([os.pread(fd, 1, start + inside)[0] ^ flip]), start + inside)
    finally:
        os.close(fd)
    return keys


@pytest.mark.parametrize("flips", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_flips_that_requests_read_change_no_answer(flips: int, tiny: Tiny, tmp_path: Path) -> None:
    """A daemon's requests read pieces with a flipped byte: each is found and named once, no answer differs, all heals."""
    rng, count = random.Random(9), min(flips, 40)
    prompts = [prompt(seed, (84, 132, 290)[seed % 3]) for seed in range(count)]  # all whole blocks are read
    read = named = 0
    with Daemon(tiny("llama"), tmp_path / "data", *ALWAYS) as daemon:
        cold = [ask_cold(daemon, ids) for ids in prompts]
        for ids in prompts:
            ask(daemon, ids)
        known = list(chains(daemon).values())
        assert len(known) == count
        for _ in range(flips // count):
            daemon.flush()
            keys = flip_one_of_each(daemon, rng, known)
            seen = len(said(daemon))
            for ids, answer in zip(prompts, cold, strict=True):
                assert same(ask(daemon, ids), answer)
            read += len(keys)
            # In a long run the scheduled check meets some of them first.
            lines = [line for line in said(daemon)[seen:].splitlines() if any(words in line for words in FOUND)]
            named += sum(any(key[:16] in line for line in lines) for key in keys)
            assert named == read
        daemon.flush()
        assert all(cached(ask(daemon, ids)) >= len(ids) - 32 for ids in prompts)
        stats = daemon.stats()
        assert stats["restore_failures"] + stats["disk_damage_found"] >= read == named == flips
        print(f"{read} flips read, {named} named, no answer differs")
        assert daemon.stop() == 0
