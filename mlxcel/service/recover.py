"""From a log and a disk tier to a state that can go on: the newest checkpoint, the records after it, what the disk holds."""

from collections.abc import Iterable, Iterator

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import decode_state
from mlxcel.core.decide.lifecycle import compare_inventory
from mlxcel.core.redecide import Logged, fold
from mlxcel.core.state import State
from mlxcel.service.cache import CacheService


class Folded(msgspec.Struct, frozen=True):
    """The state that the log stands for, and how many records after the checkpoint made it."""

    state: State
    records: int


def fold_log(checkpoint: bytes | None, tail: Iterable[tuple[int, bytes]]) -> Folded:
    """Rebuild the state. Raises msgspec.ValidationError for records that this code can't read."""
    state = decode_state(checkpoint) if checkpoint is not None else State()
    records = sum(1 for _ in fold(state, _logged(tail)))
    return Folded(state, records)


def _logged(tail: Iterable[tuple[int, bytes]]) -> Iterator[Logged]:
    for seq, payload in tail:
        yield Logged(seq, False, payload)


def settle(cache: CacheService, inventory: dict[bytes, int], log_cut_bytes: int, detail: str) -> list[bytes]:
    """Make the difference between state and disk into events; returns keys on disk that nothing refers to."""
    missing, found, orphans = compare_inventory(cache.state, inventory)
    cache.run(
        cmd.Recover(
            at_us=cache.now_us(),
            missing=missing,
            found=found,
            orphans=len(orphans),
            log_cut_bytes=log_cut_bytes,
            detail=detail,
        )
    )
    cache.tiers.pieces.clear()
    return [key for key in inventory if key not in cache.state.blob_by_key]
