"""What was decided at the wish of an operator, of the clock or of the process itself. Part of `events`, which see."""

from mlxcel.core.event import Event


class CacheReset(Event, frozen=True, tag="cache_reset.1"):
    """Everything that no request leased and no pin held is forgotten; the pins too, if `include_pins`."""

    caller: str
    entries: int
    freed_bytes: int
    include_pins: bool = False


class PrefixPinned(Event, frozen=True, tag="prefix_pinned.1"):
    """The entry's whole path stays from now on, under this name. `before`: the entry that bore the name (0: none)."""

    name: str
    entry: int
    caller: str
    before: int = 0


class PrefixUnpinned(Event, frozen=True, tag="prefix_unpinned.1"):
    """The name is free and the entry ages like any other."""

    name: str
    entry: int
    caller: str


class EntriesDeleted(Event, frozen=True, tag="entries_deleted.1"):
    """An operator had these entries ended in every tier, with the pieces that only they used."""

    caller: str
    entries: list[int]
    freed_bytes: int


class PromotionStarted(Event, frozen=True, tag="promotion_started.1"):
    """Blobs `restore` are to be read into memory for `entry`. `request` stands for the errand until its restore ends."""

    request: str
    entry: int
    node: int
    restore: list[int]
    caller: str


class EntryDemoted(Event, frozen=True, tag="entry_demoted.1"):
    """The entry's own pieces left memory as far as they were written; `waiting` pieces have yet to be."""

    entry: int
    caller: str
    waiting: int
    freed_bytes: int


class OperationRefused(Event, frozen=True, tag="operation_refused.1"):
    """An operator's command did nothing, and why. `subject`: the entry's number or the pin's name."""

    operation: str
    reason: str
    subject: str
    caller: str


class MemoryShrunk(Event, frozen=True, tag="memory_shrunk.1"):
    """Memory was short: so much was given up to reach `target_bytes`; `held_bytes` are left, `more` may still go."""

    target_bytes: int
    freed_bytes: int
    held_bytes: int
    more: bool


class SweepDone(Event, frozen=True, tag="sweep_done.1"):
    """A sweep looked for expired pieces and entries and dropped `victims`; `more` are left for the next step."""

    victims: int
    more: bool


class Recovered(Event, frozen=True, tag="recovered.1"):
    """The process started: leases released, memory empty, counters at 0."""

    requests_lost: int
    pieces_missing: int
    pieces_found: int
    orphans: int
    log_cut_bytes: int
    detail: str
