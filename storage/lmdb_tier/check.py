"""Looking through a whole tier: every piece read and verified, and data that no index entry speaks of."""

from collections.abc import Iterator

import msgspec

from mlxcel.ports import PieceCorrupt, PieceMissing
from storage.lmdb_tier.tier import LmdbTier


class TierReport(msgspec.Struct, frozen=True):
    """What `check` found: pieces read, their stored bytes, and the faulty ones with the reason."""

    pieces: int
    stored_bytes: int
    faulty: dict[bytes, str]
    orphans: frozenset[bytes]  # keys with chunks but without an index entry


def check(tier: LmdbTier) -> TierReport:
    """Read and verify every piece. Changes nothing; deleting the keys named repairs. Raises StoreUnavailable."""
    inventory = tier.inventory()
    faulty = dict(_faults(tier, inventory))
    orphans = frozenset(tier.data_keys() - inventory.keys())
    return TierReport(len(inventory), sum(inventory.values()), faulty, orphans)


def _faults(tier: LmdbTier, inventory: dict[bytes, int]) -> Iterator[tuple[bytes, str]]:
    for key in inventory:
        try:
            tier.read(key)
        except (PieceCorrupt, PieceMissing) as error:
            yield key, str(error)
