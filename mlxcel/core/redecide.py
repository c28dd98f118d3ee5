"""Deciding a recorded history again: the same two functions that the server runs, over records read back from its log."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from mlxcel.core.checkpoint import decode_state, fingerprint
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.policy import LOGIC_VERSION
from mlxcel.core.record import Record, decode_record, expand_record
from mlxcel.core.state import State


class Logged(msgspec.Struct, frozen=True):
    """One payload of the log: its sequence number, whether it is a checkpoint, and the bytes."""

    seq: int
    checkpoint: bool
    payload: bytes


class Step(msgspec.Struct, frozen=True):
    """One record in full, after it was applied to the state."""

    seq: int
    record: Record


class Divergence(msgspec.Struct, frozen=True):
    """Where deciding again gave something else than was recorded."""

    seq: int
    what: str
    recorded: str
    decided: str


@contextmanager
def _fitting(seq: int) -> Iterator[None]:
    """Name as damage what only a record that contradicts the state before it can raise."""
    try:
        yield
    except (TypeError, IndexError, OverflowError, AttributeError) as fault:
        raise ValueError(f"record {seq} does not fit what came before: {fault}") from fault


def fold(state: State, payloads: Iterable[Logged]) -> Iterator[Step]:
    """Apply records to `state` in order, yielding each; a checkpoint in the middle changes nothing.

    To start from a checkpoint, decode it and pass what follows it. Raises msgspec.MsgspecError, KeyError, ValueError or
    AssertionError for a record that can't be read or does not fit.
    """
    for logged in payloads:
        if not logged.checkpoint:
            with _fitting(logged.seq):
                record = expand_record(state, decode_record(logged.payload))
                apply(state, record.command.at_us, record.events)
            yield Step(logged.seq, record)


def verify(payloads: Iterable[Logged], stop_at_first: bool = True) -> tuple[State, int, list[Divergence]]:
    """Decide every record again and compare. Returns (final state, records decided, divergences).

    Records of another logic version are folded, not decided. A checkpoint must have the folded state's fingerprint; the
    first one may open the history.
    """
    state, decided, found = State(), 0, []
    fresh = True
    for logged in payloads:
        if logged.checkpoint:
            if fresh:
                state = decode_state(logged.payload)
            else:
                found += _compare_checkpoint(state, logged)
            fresh = False
        else:
            fresh = False
            with _fitting(logged.seq):
                record = expand_record(state, decode_record(logged.payload))
                if state.logic_version == LOGIC_VERSION:
                    decided += 1
                    found += _compare(state, logged.seq, record)
                apply(state, record.command.at_us, record.events)
        if found and stop_at_first:
            break
    return state, decided, found


def _compare(state: State, seq: int, record: Record) -> list[Divergence]:
    decided = decide(state, record.command)
    if decided == list(record.events):
        return []
    for at, (was, now) in enumerate(zip(record.events, decided, strict=False)):
        if was != now:
            return [Divergence(seq, f"event {at + 1} of {_name(record.command)}", _short(was), _short(now))]
    what = f"number of events of {_name(record.command)}"
    return [Divergence(seq, what, str(len(record.events)), str(len(decided)))]


def _compare_checkpoint(state: State, logged: Logged) -> list[Divergence]:
    recorded, folded = fingerprint(decode_state(logged.payload)), fingerprint(state)
    return [] if recorded == folded else [Divergence(logged.seq, "checkpoint", recorded, folded)]


def _name(message: msgspec.Struct) -> str:
    return type(message).__name__


def _short(message: msgspec.Struct) -> str:
    text = repr(message)
    return text if len(text) <= 400 else text[:397] + "..."
