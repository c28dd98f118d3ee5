"""Putting right what a check found. Only on request, and only while no daemon owns the directory."""

from pathlib import Path

from ops.fsck.examine import Examined
from ops.fsck.history import set_history_aside, usable_from
from ops.fsck.report import Report
from storage.event_log.reader import LogReader
from storage.lmdb_tier.environment import set_aside
from storage.lmdb_tier.tier import LmdbTier

_LOG = ("log_damaged", "state_unreadable")
_HISTORY = ("history_damaged", "history_missing")
_DELETE = ("piece_damaged", "piece_size", "piece_unknown", "data_without_index")


def repair(data_dir: Path, examined: Examined) -> Report:
    """Do what the findings' `repair` says; the caller holds the directory's lock. Returns the report with `repaired`.

    Nothing is thrown away but pieces that no request could use: a log or a store is renamed, not removed.
    Raises StorageError, OSError.
    """
    report = examined.report
    kinds = {finding.kind for finding in report.findings}
    if kinds & set(_LOG):
        report.repaired.append(f"the log was set aside as {set_aside(data_dir / 'log')}")
    elif kinds & set(_HISTORY):
        report.repaired.append(_mend_history(data_dir / "log"))
    if "store_unreadable" in kinds:
        report.repaired.append(f"the store was set aside as {set_aside(data_dir / 'kv')}")
        return report
    keys = [bytes.fromhex(finding.where) for finding in report.findings if finding.kind in _DELETE]
    if keys:
        tier = LmdbTier.open(data_dir / "kv")
        try:
            tier.write_group([], keys)
            tier.sync()
        finally:
            tier.close()
        report.repaired.append(f"{len(keys)} pieces were deleted")
    return report


def _mend_history(directory: Path) -> str:
    first_seq = usable_from(LogReader(directory))
    assert first_seq is not None, "the check found the log whole from its newest checkpoint on"
    target, moved = set_history_aside(directory, first_seq)
    return f"{moved} older segments were moved to {target}; the log begins at record {first_seq} now, the cache stays"
