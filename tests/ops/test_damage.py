"""Logs that are cut or damaged anywhere, and tiers that lag behind the log: the start is clean and verify tells."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.decide.lifecycle import compare_inventory
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.record import decode_record, encode_record
from mlxcel.core.redecide import verify
from mlxcel.core.state import STORED, State
from mlxcel.core.tokens import from_ids
from mlxcel.ports import Part
from ops.replay.source import History
from ops.replay.walk import Until, fold_until, moments, open_history
from storage.event_log.frame import HEADER_BYTES
from storage.event_log.recovery import open_log
from storage.event_log.segment import list_segments
from storage.event_log.settings import LogSettings
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from tests.ops.driver import Driver, policy


def small_driver() -> Driver:
    """Return a driver after a few requests that evict from both tiers."""
    driver = Driver(policy(capacity_bytes=100 * 300, write_policy="behind", disk_capacity_bytes=100 * 500))
    for n, start in enumerate((0, 0, 1000, 2000, 1000, 3000, 4000, 0, 3000)):
        driver.serve(f"r{n}", list(range(start, start + 120 + 10 * n)), list(range(900, 930)))
    return driver


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """Return a small log and its payloads; tests copy it."""
    driver = small_driver()
    return driver.write_log(tmp_path_factory.mktemp("small")), [payload for _, payload in driver.payloads]


def copy_log(small: Path, target: Path) -> Path:
    """Copy the log; returns the segment's file."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(small, target)
    return list_segments(target / "log")[-1].path


def test_cut_at_every_byte_of_the_last_record(small: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    """Verify reads all whole records and tells the torn rest; after a start the log goes on with the next number."""
    source, payloads = small
    whole = list_segments(source / "log")[-1].path.read_bytes()
    last = HEADER_BYTES + len(payloads[-1])
    for cut in range(1, last + 1):
        segment = copy_log(source, tmp_path / "cut")
        segment.write_bytes(whole[:-cut])
        history = History(tmp_path / "cut", stop_at_damage=True)
        _, decided, found = verify(history)
        assert (decided, found, history.fault) == (len(payloads) - 2, [], None)
        assert (history.torn is None) == (cut == last)
        assert segment.read_bytes() == whole[:-cut], "reading changes nothing"
        if cut % 16 == 1 or cut == last:
            _start_and_append(tmp_path / "cut", len(payloads), cut_bytes=last - cut)


def _start_and_append(path: Path, next_seq: int, cut_bytes: int) -> None:
    opened = open_log(path / "log", LogSettings(delay_s=0.0))
    assert (opened.cut.cut_bytes if opened.cut else 0) == cut_bytes
    state = fold_until(History(path), Until())
    command = cmd.Recover(at_us=state.now_us, log_cut_bytes=cut_bytes)
    seq = opened.writer.append(encode_record(state, command, decide(state, command)))
    opened.writer.close()
    assert seq == next_seq
    history = History(path, stop_at_damage=True)
    _, _, found = verify(history)
    assert (found, history.fault, history.torn) == ([], None, None)
    numbers = [logged.seq for logged in History(path)]
    assert numbers == list(range(1, next_seq + 1))


def test_damage_at_every_byte_of_a_middle_record(small: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    """Every flipped byte is found with its place, what came before is verified, and no file is changed."""
    source, payloads = small
    segment = copy_log(source, tmp_path / "flip")
    whole = segment.read_bytes()
    middle = next(n for n, p in enumerate(payloads) if n > len(payloads) // 2 and len(p) < 400)
    start = whole.index(payloads[middle]) - HEADER_BYTES
    for at in range(start, start + HEADER_BYTES + len(payloads[middle])):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        before = sha256(segment.read_bytes()).digest()
        history = History(tmp_path / "flip", stop_at_damage=True)
        _, decided, found = verify(history)
        assert (decided, found) == (middle - 1, [])
        assert history.fault is not None
        assert f"byte {start}" in str(history.fault)
        assert sha256(segment.read_bytes()).digest() == before


def test_a_flip_in_the_last_record_is_never_accepted(small: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    """A flipped byte at the very end is a torn tail or damage, but the record is not believed."""
    source, payloads = small
    segment = copy_log(source, tmp_path / "flip")
    whole = segment.read_bytes()
    start = len(whole) - HEADER_BYTES - len(payloads[-1])
    for at in range(start, len(whole)):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        history = History(tmp_path / "flip", stop_at_damage=True)
        _, decided, found = verify(history)
        assert (decided, found) == (len(payloads) - 2, [])
        assert history.fault is not None or history.torn is not None


def test_a_deleted_segment_stops_the_replay(tmp_path: Path) -> None:
    """Case 3 of B084: a middle segment is gone; verify says so with exit code 1, untouched files."""
    driver = small_driver()
    opened = open_log(tmp_path / "log", LogSettings(delay_s=0.0))
    state = State()
    for n, (checkpoint, payload) in enumerate(driver.payloads):
        if checkpoint:
            opened.writer.open_segment(payload)
            continue
        opened.writer.append(payload)
        state = _applied(state, payload)
        if n % 8 == 7:
            opened.writer.open_segment(_encoded(state))
    opened.writer.close()
    segments = list_segments(tmp_path / "log")
    assert len(segments) >= 4
    assert verify(History(tmp_path))[2] == []
    segments[1].path.unlink()
    history = History(tmp_path, stop_at_damage=True)
    verify(history)
    assert history.fault is not None
    assert len(list_segments(tmp_path / "log")) == len(segments) - 1


def _applied(state: State, payload: bytes) -> State:
    from mlxcel.core.record import expand_record

    record = expand_record(state, decode_record(payload))
    apply(state, record.command.at_us, record.events)
    return state


def _encoded(state: State) -> bytes:
    from mlxcel.core.checkpoint import encode_state

    return encode_state(state)


# ---------------------------------------------------------------- borders between record and tier

Step = tuple[str, bytes]


def timeline(driver: Driver) -> list[Step]:
    """Return what happens in order: "log" a record; then what it asks of the tier, "put" or "delete" a key.

    A record that books writes ("record_spills") stands after the puts that it reports, as in the running server.
    """
    steps: list[Step] = []
    state = State()
    for checkpoint, payload in driver.payloads:
        if checkpoint:
            continue
        steps.append(("log", payload))
        keys = {blob.id: blob.key for blob in state.blobs.values()}
        events = decode_record(payload).events
        for event in events:
            if isinstance(event, ev.PieceSealed) and event.spill:
                steps.append(("put", event.key))
                keys[event.blob] = event.key
            elif isinstance(event, ev.PieceEvicted) and event.tier == "disk" and event.freed_blob:
                steps.append(("delete", keys[event.freed_blob]))
        state = _applied(state, payload)
    return steps


def crash_states(steps: list[Step]) -> list[tuple[list[bytes], list[Step]]]:
    """Return (records in the log, effects in the tier) for a stop at every border, the tier up to five effects behind."""
    found = []
    for at in range(1, len(steps) + 1):
        records = [data for kind, data in steps[:at] if kind == "log"]
        effects = [step for step in steps[:at] if step[0] != "log"]
        for behind in (0, 1, 5):
            if behind <= len(effects):
                found.append((records, effects[: len(effects) - behind]))
    return found


def test_effects_lost_at_every_border(tmp_path: Path) -> None:
    """Wherever it stops, the next start's events bring state and tier to agree, and what is adopted can be read."""
    steps = timeline(small_driver())
    assert {kind for kind, _ in steps} == {"log", "put", "delete"}
    tier = LmdbTier.open(tmp_path / "kv", TierOptions(map_bytes=1 << 22, reserve_bytes=0))
    missing = found = orphans = 0
    try:
        for records, effects in crash_states(steps):
            tier.write_group([], list(tier.inventory()))
            _do(tier, effects)
            recovered = _start(tier, records)
            missing += recovered.pieces_missing
            found += recovered.pieces_found
            orphans += recovered.orphans
    finally:
        tier.close()
    assert missing > 0
    assert found > 0
    assert orphans > 0


def _do(tier: LmdbTier, effects: list[Step]) -> None:
    held: dict[bytes, None] = {}
    for kind, key in effects:
        if kind == "put":
            held[key] = None
        else:
            held.pop(key, None)
    tier.write_group([(key, [Part("k", "float32", (1,), key[:4])]) for key in held], [])


def _start(tier: LmdbTier, records: list[bytes]) -> ev.Recovered:
    state = State()
    for payload in records:
        state = _applied(state, payload)
    inventory = tier.inventory()
    missing, found, orphans = compare_inventory(state, inventory)
    command = cmd.Recover(at_us=state.now_us, missing=missing, found=found, orphans=len(orphans))
    events = decide(state, command)
    apply(state, command.at_us, events)
    tier.write_group([], [key for key in inventory if key not in state.blob_by_key])
    assert broken_invariants(state) == []
    stored = {blob.key for blob in state.blobs.values() if blob.disk_state == STORED}
    assert stored == set(tier.inventory())
    _serve_again(state, tier)
    told = events[-1]
    assert isinstance(told, ev.Recovered)
    return told


def _serve_again(state: State, tier: LmdbTier) -> None:
    """Ask for every prompt of the script again: all that is adopted is in the tier, byte for byte."""
    if not state.namespaces:
        return
    for start in (0, 1000, 2000, 3000, 4000):
        tokens = from_ids(range(start, start + 200))
        command = cmd.AdoptPrefix(
            at_us=state.now_us, request=f"again{start}", namespace=1, template_sig="t", session_key="s", tokens=tokens
        )  # fmt: skip
        events = decide(state, command)
        apply(state, command.at_us, events)
        for event in events:
            if isinstance(event, ev.PrefixAdopted):
                for blob in event.restore:
                    key = state.blobs[blob].key
                    assert bytes(tier.read(key)[0].data) == key[:4]
        end = cmd.EndRequest(at_us=state.now_us, request=command.request, outcome="failed")
        if state.requests[command.request].restore:
            apply(state, end.at_us, decide(state, cmd.RecordRestore(at_us=end.at_us, request=command.request)))
        apply(state, end.at_us, decide(state, end))


def test_the_history_tells_what_a_start_found(tmp_path: Path) -> None:
    """Pieces missing on disk and bytes cut from the log stand in the record of the start."""
    driver = small_driver()
    blobs = [b.id for b in driver.state.blobs.values() if b.disk_state == STORED][:2]
    driver.run(cmd.Recover(at_us=driver.now_us, missing=blobs, log_cut_bytes=17))
    state, rest = open_history(History(driver.write_log(tmp_path)))
    last = list(moments(state, rest))[-1].record
    told = last.events[-1]
    assert isinstance(told, ev.Recovered)
    assert (told.pieces_missing, told.log_cut_bytes) == (2, 17)
    assert fingerprint(state) == fingerprint(driver.state)
