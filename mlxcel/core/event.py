"""The base of all events, apart so that events can live in more than one module."""

import msgspec


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all events."""
