"""The mechanics of upcasters, with made-up old formats: no released version has needed one yet."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from migrations.events import UPCASTERS, newest_tag, upcast, upcast_record
from mlxcel.core import events as ev
from mlxcel.core.record import decode_record
from tests.ops.driver import Driver, policy

Steps = Mapping[str, tuple[str, Callable[[list[Any]], list[Any]]]]


def from_0(event: list[Any]) -> list[Any]:
    """Version 0 knew no reason."""
    _, request, known = event
    return ["prefix_missed.half", request, known, "unknown"]


def from_half(event: list[Any]) -> list[Any]:
    """The half version had reason and tokens the other way round."""
    _, request, known, reason = event
    return ["prefix_missed.1", request, reason, known]


STEPS: Steps = {"prefix_missed.0": ("prefix_missed.half", from_0), "prefix_missed.half": ("prefix_missed.1", from_half)}


def old_record() -> bytes:
    """Return a record as version 0 would have written it."""
    driver = Driver(policy())
    driver.serve("r", list(range(50)))
    payload = next(p for _, p in driver.payloads if b"prefix_missed.1" in p)
    command, events = msgspec.msgpack.decode(payload)
    old = [["prefix_missed.0", e[1], e[3]] if e[0] == "prefix_missed.1" else e for e in events]
    return msgspec.msgpack.encode([command, old])


def test_steps_are_taken_one_after_the_other() -> None:
    """A record two versions old decodes as today's after both steps, and not without them."""
    old = old_record()
    with pytest.raises(msgspec.ValidationError):
        decode_record(old)
    missed = decode_record(upcast_record(old, STEPS)).events[1]
    assert missed == ev.PrefixMissed("r", "unknown", 0)


def test_what_needs_no_step_is_left_alone() -> None:
    """Without steps for its tags a record keeps its very bytes."""
    old = old_record()
    assert upcast_record(old, {}) is old
    assert upcast_record(old, {"another.1": ("another.2", list)}) is old
    assert upcast(["prefix_missed.1", 1], STEPS) == ["prefix_missed.1", 1]


def test_a_step_does_not_change_what_it_is_given() -> None:
    """The list of the old version stays as it was."""
    event = ["prefix_missed.0", "r", 7]
    assert upcast(event, STEPS) == ["prefix_missed.1", "r", "unknown", 7]
    assert event == ["prefix_missed.0", "r", 7]


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ({"a.1": ("a.2", lambda e: ["a.3"])}, "should give"),
        ({"a.1": ("a.2", lambda e: ["a.2"]), "a.2": ("a.1", lambda e: ["a.1"])}, "circle"),
    ],
)
def test_a_wrong_step_is_found(steps: Steps, fault: str) -> None:
    """A step that gives another tag, or steps in a circle, are errors rather than loops or silence."""
    with pytest.raises(ValueError, match=fault):
        upcast(["a.1"], steps)


@pytest.mark.parametrize("payload", [b"", b"\xc1prefix_missed.0", msgspec.msgpack.encode(["prefix_missed.0"]),
                                     msgspec.msgpack.encode([["prefix_missed.0"], 5])])  # fmt: skip
def test_bytes_that_are_no_record_are_refused(payload: bytes) -> None:
    """Damaged bytes end in ValueError, never in another exception."""
    if b"prefix_missed.0" in payload:
        with pytest.raises(ValueError, match="record"):
            upcast_record(payload, STEPS)
    else:
        assert upcast_record(payload, STEPS) == payload


def test_every_released_step_ends_in_a_tag_that_is_read() -> None:
    """The registered steps end in tags of today's commands and events."""
    assert newest_tag("prefix_missed.0", STEPS) == "prefix_missed.1"
    known = {t.__struct_config__.tag for t in ev.AnyEvent.__args__}
    assert all(newest_tag(tag) in known for tag in UPCASTERS)
