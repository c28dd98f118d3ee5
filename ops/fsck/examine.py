"""Looking at log and tier, each alone and then at their agreement. Changes nothing."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from migrations.events import upcast_record
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.state import STORED, State
from mlxcel.service.recover import fold_log
from ops.fsck.report import Finding, Report
from storage.errors import LogCorrupt, LogError, LogNewerThanCode, NewerThanCode, StorageError
from storage.event_log import manifest
from storage.event_log.reader import LogReader
from storage.lmdb_tier.check import TierReport, check
from storage.lmdb_tier.environment import DATA_FILE
from storage.lmdb_tier.tier import LmdbTier
from storage.lock import owner_of


class Examined(msgspec.Struct):
    """A report and what a repair needs beside it: the state (None when it can't be had) and what the tier holds."""

    report: Report
    state: State | None = None
    tier: TierReport | None = None
    inventory: dict[bytes, int] = {}


def examine(data_dir: Path, owned: bool = False) -> Examined:
    """Check everything in a data directory; `owned`: the caller holds its lock. Raises OSError when it can't be read.

    While a daemon runs the two sides move apart and together all the time, so their agreement is not judged then.
    """
    examined = Examined(
        Report(str(data_dir), running_pid=None if owned else owner_of(data_dir), findings=[], repaired=[])
    )
    examined.state = _log(examined.report, data_dir / "log")
    _tier(examined, data_dir / "kv")
    if examined.state is not None and examined.tier is not None and examined.report.running_pid is None:
        examined.report.findings.extend(_disagreements(examined.state, examined.inventory))
    return examined


def _log(report: Report, directory: Path) -> State | None:
    wrong = _no_folder(directory, "log_damaged", "the cache starts empty")
    if wrong is not None:
        report.findings.append(wrong)
        return None
    reader = LogReader(directory)
    try:
        found = reader.verify()
    except LogError as fault:
        report.findings.append(Finding("log_damaged", str(directory), str(fault), "set the log aside"))
        return None
    report.log_segments, report.log_records, report.log_bytes = found.segments, found.records, found.log_bytes
    if found.fault is not None and not _only_history(report, reader, found.fault):
        newer = isinstance(found.fault, NewerThanCode)
        kind, repair = ("log_newer", "") if newer else ("log_damaged", "set the log aside; the cache starts empty")
        report.findings.append(Finding(kind, str(directory), str(found.fault), repair))
        return None
    torn = reader.torn
    if torn is not None and report.running_pid is None:
        text = f"{torn.cut_bytes} bytes of an unfinished record; the next start cuts them off"
        report.findings.append(Finding("log_torn", str(torn.file), text))
    return _state(report, reader, directory)


def _no_folder(path: Path, kind: str, then: str) -> Finding | None:
    """Return what is wrong when a file, or a link to nowhere, stands where a folder belongs."""
    if path.is_symlink() and not path.exists():
        # Most likely a disk that isn't mounted: nothing that a repair should touch.
        return Finding("link_broken", str(path), f"a link to {path.readlink()}, which isn't there: mount or restore it")
    if not path.exists() or path.is_dir():
        return None
    text = "a file, not a folder: move this file away, or put the folder back"
    return Finding(kind, str(path), text, f"set the file aside; {then}")


def _only_history(report: Report, reader: LogReader, fault: LogCorrupt | LogNewerThanCode) -> bool:
    """Say whether the fault lies where a start doesn't read: from the newest checkpoint on the log is whole."""
    try:
        checkpoint = reader.newest_checkpoint()
        if checkpoint is None:
            return False
        reader.bytes_read = 0
        report.log_records = sum(1 for _ in reader.records(checkpoint[0] - 1))
    except (LogError, NewerThanCode):
        return False
    report.log_bytes = reader.bytes_read
    unaffected = "the cache is unaffected, replay and what-if can't read past it"
    if isinstance(fault, LogCorrupt):
        text = f"history before the newest checkpoint is damaged: {fault.file} byte {fault.offset}; {unaffected}"
        repair = "move the damaged segments and those before them aside; the cache stays"
        kind = "history_damaged"
        if fault.file.name == manifest.NAME:  # what is listed there and isn't in the folder
            kind, text = "history_missing", f"history before the newest checkpoint is missing; {unaffected}"
            repair = "move what stands before the gap aside; the cache stays"
        report.findings.append(Finding(kind, str(reader.directory), f"{text} ({fault.reason})", repair))
    else:
        report.findings.append(Finding("history_newer", str(reader.directory), f"{fault}; {unaffected}"))
    return True


def _state(report: Report, reader: LogReader, directory: Path) -> State | None:
    try:
        checkpoint = reader.newest_checkpoint()
        after, payload = checkpoint or (0, None)
        tail = ((seq, upcast_record(record)) for seq, record in reader.records(after))
        state = fold_log(payload, tail).state
    except (LogError, msgspec.MsgspecError, ValueError, KeyError, AssertionError) as fault:
        text = f"the records can't be folded: {type(fault).__name__}: {fault}"
        report.findings.append(Finding("state_unreadable", str(directory), text, "set the log aside"))
        return None
    report.referred = sum(1 for blob in state.blobs.values() if blob.disk_state == STORED)
    report.findings.extend(Finding("state_broken", str(directory), wrong) for wrong in broken_invariants(state))
    return state


def _tier(examined: Examined, directory: Path) -> None:
    report = examined.report
    wrong = _no_folder(directory, "store_unreadable", "a new store is begun")
    if wrong is not None:
        report.findings.append(wrong)
        return
    if not (directory / DATA_FILE).exists():
        return
    try:
        tier = LmdbTier.open(directory, read_only=True)
    except StorageError as fault:
        repair = "" if isinstance(fault, NewerThanCode) else "set the store aside; a new one is begun"
        kind = "store_newer" if isinstance(fault, NewerThanCode) else "store_unreadable"
        report.findings.append(Finding(kind, str(directory), str(fault), repair))
        return
    try:
        examined.inventory = tier.inventory()
        examined.tier = found = check(tier)
        report.file_bytes = tier.stats()["file"]
    except StorageError as fault:
        report.findings.append(Finding("store_unreadable", str(directory), str(fault), "set the store aside"))
        return
    finally:
        tier.close()
    report.pieces, report.stored_bytes = found.pieces, found.stored_bytes
    for key, reason in found.faulty.items():
        report.findings.append(Finding("piece_damaged", key.hex(), reason, "delete it"))
    for key in found.orphans:
        report.findings.append(Finding("data_without_index", key.hex(), "chunks that no entry names", "delete them"))


def _disagreements(state: State, inventory: dict[bytes, int]) -> Iterator[Finding]:
    for blob in state.blobs.values():
        stored = inventory.get(blob.key)
        if blob.disk_state == STORED and stored is None:
            yield Finding("piece_missing", blob.key.hex(), "the log has it on disk; the next start lets go of it")
        elif blob.disk_state == STORED and stored != blob.stored_bytes:
            yield Finding("piece_size", blob.key.hex(), f"{stored} bytes, by the log {blob.stored_bytes}", "delete it")
    for key in inventory:
        if key not in state.blob_by_key:
            yield Finding("piece_unknown", key.hex(), "on disk, but unknown to the log", "delete it")
