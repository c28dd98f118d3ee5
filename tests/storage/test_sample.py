"""The slow look at a few stored pieces."""

import random
from pathlib import Path

import lmdb

from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.sample import BYTES_S, sample
from storage.lmdb_tier.tier import LmdbTier
from tests.storage.doubles import key_of, some_parts

OPTIONS = TierOptions(map_bytes=1 << 24, reserve_bytes=0)
NBYTES = sum(len(part.data) for part in some_parts(0, 2_000))


def filled(folder: Path, count: int) -> LmdbTier:
    """Return a tier of `count` pieces under keys spread like digests."""
    tier = LmdbTier.open(folder, OPTIONS)
    rng = random.Random(5)
    tier.write_group([(rng.randbytes(32), some_parts(n, 2_000)) for n in range(count)], [])
    return tier


def test_it_reads_some_pieces_and_rests_after_each(tmp_path: Path) -> None:
    """It reads neighbours from a random key on, round the end, within its limits, and rests by what it read."""
    tier = filled(tmp_path / "kv", 40)
    keys, rests = sorted(tier.inventory()), list[float]()
    found = sample(tier, lambda count: keys[30], rests.append, most_pieces=25)
    assert (found.pieces, found.nbytes, found.faulty, found.fault) == (25, 25 * NBYTES, {}, "")
    assert rests == [NBYTES / BYTES_S] * 25
    assert sample(tier, random.Random(1).randbytes, rests.append, most_bytes=3 * NBYTES).pieces == 3
    assert sample(tier, random.Random(1).randbytes, lambda rest_s: True).pieces == 1
    assert sample(tier, random.Random(1).randbytes, rests.append).pieces == 40
    assert tier.keys_from(keys[30], 25) == [*keys[30:], *keys[:15]]
    assert tier.keys_from(keys[30], 99) == [*keys[30:], *keys[:30]]
    assert tier.keys_from(b"\xff" * 32, 2) == keys[:2]
    drawn = [key for n in range(400) for key in tier.keys_from(random.Random(n).randbytes(32), 10)]
    assert min(drawn.count(key) for key in keys) > 25  # 100 each on average
    tier.close()


def test_it_names_what_is_damaged_and_changes_nothing(tmp_path: Path) -> None:
    """A flipped byte, a lost chunk and a damaged index entry are each found by key, with the reason; all stays as it is."""
    filled(tmp_path / "kv", 12).close()
    env = lmdb.open(str(tmp_path / "kv"), max_dbs=8)
    index, data = env.open_db(b"index"), env.open_db(b"data")
    with env.begin(write=True) as txn:
        keys = [bytes(key) for key, _ in txn.cursor(index)]
        chunk = bytearray(txn.get(keys[2] + bytes(4), db=data))
        chunk[99] ^= 4
        txn.put(keys[2] + bytes(4), bytes(chunk), db=data)
        txn.delete(keys[5] + bytes(4), db=data)
        txn.put(keys[7], b"nonsense", db=index)
    env.close()
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    found = sample(tier, random.Random(2).randbytes, lambda rest_s: None)
    assert found.pieces == 12
    assert set(found.faulty) == {keys[2], keys[5], keys[7]}
    assert all(key.hex()[:16] in reason for key, reason in found.faulty.items())
    assert len(tier.inventory()) == 12
    tier.close()


def test_an_empty_and_a_closed_tier(tmp_path: Path) -> None:
    """Nothing to read is no fault; a tier that is closed under it ends the look with the reason."""
    tier = LmdbTier.open(tmp_path / "kv", OPTIONS)
    assert sample(tier, random.Random(3).randbytes, lambda rest_s: None).pieces == 0
    tier.write_group([(key_of(n), some_parts(n, 2_000)) for n in range(8)], [])
    found = sample(tier, random.Random(3).randbytes, lambda rest_s: tier.close())
    assert (found.pieces, "closed" in found.fault) == (1, True)
