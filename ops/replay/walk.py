"""Going through a history step by step, with the state as it was before each record."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from mlxcel.core.checkpoint import decode_state
from mlxcel.core.evolve import apply
from mlxcel.core.record import Record, decode_record, expand_record
from mlxcel.core.redecide import Logged
from mlxcel.core.state import State


class Moment(msgspec.Struct, frozen=True):
    """One record (tokens in full) and the state before it. The state goes on when the next moment is asked for."""

    seq: int
    record: Record
    state: State


class Until(msgspec.Struct, frozen=True):
    """Where to stop: after sequence number `seq`, or after the last record at or before `at_us`."""

    seq: int | None = None
    at_us: int | None = None

    def allows(self, logged: Logged, record: Record | None) -> bool:
        """True when the record still belongs to what is wanted."""
        if self.seq is not None:
            return logged.seq <= self.seq
        return self.at_us is None or record is None or record.command.at_us <= self.at_us


def parse_until(text: str) -> Until:
    """Read a sequence number or an ISO 8601 time (UTC unless it says otherwise). Raises ValueError."""
    if text.isdigit():
        return Until(seq=int(text))
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Until(at_us=round(when.timestamp() * 1e6))


def open_history(history: Iterable[Logged]) -> tuple[State, Iterator[Logged]]:
    """Return the state that a history begins with (its first checkpoint, or an empty one) and what follows."""
    rest = iter(history)
    first = next(rest, None)
    if first is None:
        return State(), iter(())
    if first.checkpoint:
        return decode_state(first.payload), rest
    return State(), itertools.chain([first], rest)


def moments(state: State, rest: Iterable[Logged], until: Until = Until()) -> Iterator[Moment]:  # noqa: B008
    """Yield each record before it is applied to `state`; it is applied when the next one is asked for."""
    for logged in rest:
        if logged.checkpoint:
            continue
        record = decode_record(logged.payload)
        if not until.allows(logged, record):
            return
        record = expand_record(state, record)
        yield Moment(logged.seq, record, state)
        apply(state, record.command.at_us, record.events)


def fold_until(history: Iterable[Logged], until: Until, each: Callable[[Moment], None] | None = None) -> State:
    """Return the state after the last wanted record."""
    state, rest = open_history(history)
    for moment in moments(state, rest, until):
        if each is not None:
            each(moment)
    return state
