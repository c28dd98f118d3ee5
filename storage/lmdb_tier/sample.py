"""Looking at a few pieces of a tier, slowly, so that damage is found before a request needs the bytes."""

from collections.abc import Callable

import msgspec

from mlxcel.ports import PieceCorrupt, PieceMissing, TierUnavailable
from storage.lmdb_tier.layout import KEY_BYTES
from storage.lmdb_tier.tier import LmdbTier

PIECES, BYTES = 64, 64 << 20  # a look reads no more; a quarter of an hour apart that is 6 GiB a day
BYTES_S = 20e6  # while something decodes this is not felt (writes behind are paced at 50 MB/s)


class Sampled(msgspec.Struct, frozen=True):
    """What a look found: pieces read, their bytes once decoded, the faulty ones with the reason. `fault`: why it ended early."""

    pieces: int
    nbytes: int
    faulty: dict[bytes, str]
    fault: str = ""


def sample(
    tier: LmdbTier,
    draw: Callable[[int], bytes],
    wait: Callable[[float], object],
    most_pieces: int = PIECES,
    most_bytes: int = BYTES,
) -> Sampled:
    """Read and verify pieces that follow each other in key order from a random key on. Changes nothing.

    `draw` gives so many random bytes. Keys are digests, so neighbours have nothing in common, and each piece comes up as
    often as any other. `wait` is called with the seconds to rest after each piece; when it answers True the look ends.
    """
    faulty: dict[bytes, str] = {}
    pieces = total = 0
    try:
        for key in tier.keys_from(draw(KEY_BYTES), most_pieces):
            if total >= most_bytes:
                break
            try:
                nbytes = sum(len(part.data) for part in tier.read(key))
            except PieceMissing:
                continue  # evicted meanwhile
            except PieceCorrupt as fault:
                faulty[key] = str(fault)
            else:
                total += nbytes
                if wait(nbytes / BYTES_S):
                    most_bytes = 0
            pieces += 1
    except TierUnavailable as fault:
        return Sampled(pieces, total, faulty, str(fault))
    return Sampled(pieces, total, faulty)
