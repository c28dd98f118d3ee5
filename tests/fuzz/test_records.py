"""Records, checkpoints and exports that someone has tampered with, checksums made right again: refused by type, never run."""

import contextlib
import random
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from migrations.events import upcast_record
from mlxcel.core.checkpoint import decode_state, encode_state
from mlxcel.core.record import decode_record, encode_record
from mlxcel.service.recover import fold_log
from ops.replay.container import BadFile, read_rows, write_rows
from ops.replay.mooncake import BadTrace, read_mooncake
from tests.core.world import World
from tests.fuzz.mutate import spoil_bytes, spoil_value

SEEDS = st.integers(0, 2**32)
REFUSALS = (msgspec.MsgspecError, KeyError, ValueError, AssertionError)  # what a start takes for a damaged log


def lived() -> tuple[bytes, list[bytes]]:
    """Return a checkpoint and the records after it."""
    world = World(write_policy="behind")
    records: list[bytes] = []
    world.store(range(30))
    world.store([*range(20), 90, 91, 92, 93], session="other")
    world.write_all()
    checkpoint = encode_state(world.state)
    decide = world.do

    def keep(command: Any) -> Any:
        before = decode_state(encode_state(world.state))
        events = decide(command)
        records.append(encode_record(before, command, events))
        return events

    world.do = keep  # type: ignore[method-assign]
    world.store([*range(30), 5, 6, 7, 8])
    world.write_all()
    world.adopt(range(26))
    world.restart()
    return checkpoint, records


CHECKPOINT, RECORDS = lived()


def spoiled(rng: random.Random, payload: bytes) -> bytes:
    """Spoil a payload as bytes or as values."""
    if rng.random() < 0.3:
        return spoil_bytes(rng, payload)
    while True:
        try:
            return msgspec.msgpack.encode(spoil_value(rng, msgspec.msgpack.decode(payload), rng.randint(1, 3)))
        except OverflowError:
            continue  # a number that msgpack can't hold


def fold_spoiled(seed: int) -> None:
    """Spoil the checkpoint or a record and fold; only the errors of a damaged log may come."""
    rng = random.Random(seed)
    checkpoint, records = CHECKPOINT, list(RECORDS)
    if rng.random() < 0.5:
        checkpoint = spoiled(rng, checkpoint)
    else:
        at = rng.randrange(len(records))
        records[at] = spoiled(rng, records[at])
    with contextlib.suppress(*REFUSALS):
        fold_log(checkpoint, ((seq, upcast_record(payload)) for seq, payload in enumerate(records, start=1)))


@settings(max_examples=1200)
@given(SEEDS)
def test_a_spoiled_history_is_refused_by_type(seed: int) -> None:
    """A tampered checkpoint or record folds or ends in an error that a start knows: never in another, never in code run."""
    fold_spoiled(seed)


@pytest.mark.slow
@settings(max_examples=40_000)
@given(SEEDS)
def test_a_spoiled_history_is_refused_by_type_long(seed: int) -> None:
    """The same for many more."""
    fold_spoiled(seed)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_no_bytes_are_a_record(data: bytes) -> None:
    """Bytes of any kind are refused as record and as checkpoint by a typed error."""
    for read in (decode_record, decode_state, upcast_record):
        with contextlib.suppress(*REFUSALS):
            read(data)


@settings(max_examples=300)
@given(SEEDS)
def test_a_spoiled_trace_is_a_bad_trace(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """A line of a trace with odd values is BadTrace, or is read with numbers that make sense."""
    rng = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "trace.jsonl"
    good = {"timestamp": 5, "input_length": 1030, "output_length": 3, "hash_ids": [1, 2, 3]}
    line = msgspec.json.encode(spoil_value(rng, good, 2))
    for number in (b"1e400", b"-1e308", b"99999999999999999999999"):
        line = line.replace(b"1030", number) if rng.random() < 0.2 else line
        line = line.replace(b":5", b":" + number) if rng.random() < 0.2 else line
    path.write_bytes(line if rng.random() < 0.8 else spoil_bytes(rng, line))
    with contextlib.suppress(BadTrace):
        for arrival in read_mooncake(path):
            assert arrival.at_us >= 0
            assert arrival.input_tokens >= 0


@settings(max_examples=300)
@given(SEEDS)
def test_a_spoiled_export_is_a_bad_file(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """An export with spoiled rows, lengths, end or frame is BadFile, or is read to its end."""
    rng = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "export.mlx"
    write_rows(path, "mlxcel-history", {"a": 1}, [[1, False, b"abc"], [2, False, b"def"]])
    raw = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 20)
    if rng.random() < 0.5:
        values: Any = [["mlxcel-history", 1, {}], [1, False, b"x"], ["end", 1]]
        bad = spoil_value(rng, values, 2)
        parts = [msgspec.msgpack.encode(v) for v in (bad if isinstance(bad, list) else [bad])]
        raw = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        path.write_bytes(zstandard.compress(raw))
    else:
        whole = rng.random() < 0.5
        path.write_bytes(spoil_bytes(rng, path.read_bytes()) if whole else zstandard.compress(spoil_bytes(rng, raw)))
    with contextlib.suppress(BadFile):
        list(read_rows(path, "mlxcel-history"))
