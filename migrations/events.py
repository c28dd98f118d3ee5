"""Bringing recorded events to today's form: plain list in, plain list out, one step each.

An event or command is a msgpack array whose first item is its tag, a string that ends in the format version of that type
("prefix_adopted.1"). A step takes the list of one version and returns the list of the next, tag included. A record is
[command, [event, ...]].
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Upcaster = Callable[[list[Any]], list[Any]]

# tag -> (the tag it becomes, how). A released step is never edited.
UPCASTERS: dict[str, tuple[str, Upcaster]] = {}

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def upcast(event: list[Any], steps: Mapping[str, tuple[str, Upcaster]] = UPCASTERS) -> list[Any]:
    """Apply steps until none is left for the event's tag. The list given is not changed.

    Raises ValueError when a step does not produce the tag that it is registered with, or when steps go in a circle.
    """
    if not event or not isinstance(event[0], str):
        raise ValueError("an event is a list that begins with its tag")
    seen: set[str] = set()
    while (step := steps.get(event[0])) is not None:
        tag, (becomes, change) = event[0], step
        if tag in seen:
            raise ValueError(f"the upcasters of {tag!r} go round in a circle")
        seen.add(tag)
        event = change(list(event))
        if not event or event[0] != becomes:
            raise ValueError(f"the upcaster of {tag!r} should give {becomes!r}")
    return event


def upcast_record(payload: bytes, steps: Mapping[str, tuple[str, Upcaster]] = UPCASTERS) -> bytes:
    """Return a record's bytes with its command and events in today's form; unchanged bytes when no step applies.

    Raises ValueError for bytes that are no record.
    """
    if not steps or not any(tag.encode() in payload for tag in steps):
        return payload
    try:
        record = _decode(payload)
    except msgspec.MsgspecError as fault:
        raise ValueError(f"not a record: {fault}") from fault
    if not isinstance(record, list) or len(record) != 2 or not isinstance(record[1], list):
        raise ValueError("a record is a command and a list of events")
    return _encode([upcast(record[0], steps), [upcast(event, steps) for event in record[1]]])


def newest_tag(tag: str, steps: Mapping[str, tuple[str, Upcaster]] = UPCASTERS) -> str:
    """Return the tag that `tag` ends as."""
    seen: set[str] = set()
    while tag in steps and tag not in seen:
        seen.add(tag)
        tag = steps[tag][0]
    return tag
