"""Giving back to the volume what a lowered capacity no longer allows."""

import logging
import threading
from typing import Protocol

from mlxcel.ports import TierUnavailable

_log = logging.getLogger(__name__)
SLACK_BYTES = 1 << 20
FLUSH_S = 600.0


class _Tier(Protocol):
    def stats(self) -> dict[str, int]: ...

    def compact(self) -> tuple[int, int]: ...


class _Spill(Protocol):
    def flush(self, timeout_s: float) -> bool: ...


def shrink_in_background(tier: _Tier, spill: _Spill, capacity_bytes: int) -> threading.Thread | None:
    """Compact the tier on a thread of its own, once what waits is written, if its file is over the capacity by a fifth.

    LMDB keeps free pages for later, so the file never shrinks by itself. Returns the thread, None when nothing is due.
    """
    limit = capacity_bytes * 6 // 5 + SLACK_BYTES
    if tier.stats()["file"] <= limit:
        return None
    thread = threading.Thread(target=_shrink, args=(tier, spill, limit), name="shrink", daemon=True)
    thread.start()
    return thread


def _shrink(tier: _Tier, spill: _Spill, limit: int) -> None:
    try:
        spill.flush(FLUSH_S)
        figures = tier.stats()
        if figures["file"] > limit and figures["live"] < figures["file"]:
            before, after = tier.compact()
            _log.info("disk tier: the file shrank from %d to %d bytes", before, after)
    except TierUnavailable as error:
        _log.warning("disk tier: the file stays larger than its capacity: %s", error)
