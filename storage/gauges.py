"""What the disk side counts outside the event log: bytes really written, and faults since the process started."""

from typing import Any, Protocol


class _Tier(Protocol):
    losses: int
    set_aside: Any

    def stats(self) -> dict[str, int]: ...


class _Spill(Protocol):
    def counts(self) -> dict[str, int]: ...


def disk_gauges(tier: _Tier | None, spill: _Spill | None, fault: str = "") -> dict[str, Any]:
    """Return flat figures for the statistics. `fault`: why there is no tier, "" when there is one or none was wanted.

    `disk_bytes_written_per_byte_stored` sets the pages written by commits against the bytes of the pieces they stored;
    0.0 before the first. A tier that can't be asked now gives zeros and its fault.
    """
    counts = spill.counts() if spill is not None else {}
    figures: dict[str, int] = {}
    if tier is not None:
        try:
            figures = tier.stats()
        except Exception as error:  # a gauge never fails a request; the fault is its answer
            fault = str(error)
    stored = counts.get("stored_bytes", 0)
    written = figures.get("written", 0)
    return {
        "disk_file_bytes": figures.get("file", 0),
        "disk_live_bytes": figures.get("live", 0),
        "disk_bytes_written": written,
        "disk_bytes_written_per_byte_stored": round(written / stored, 4) if stored else 0.0,
        "disk_writes_dropped": counts.get("dropped", 0),
        "disk_writes_failed": counts.get("failed", 0),
        "disk_deletes_waiting": counts.get("deletes_waiting", 0),
        "disk_losses": (tier.losses if tier is not None else 0) + int(tier is not None and tier.set_aside is not None),
        "disk_fault": fault,
    }
