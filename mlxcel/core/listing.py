"""What an operator may want to see of the state, as plain values: entries and pins. Bounded: a page at a time."""

from itertools import islice

import msgspec

from mlxcel.core.state import MEMORY, STORED, Entry, State


class EntryView(msgspec.Struct, frozen=True):
    """One entry. `bytes_in_memory`/`bytes_on_disk`: of its whole path; shared pieces count for each entry that uses them."""

    entry: int
    digest: str
    namespace: int
    model_id: str
    session_key: str
    template_sig: str
    tokens: int
    origin: str
    hits: int
    created_us: int
    last_used_us: int
    resident: bool
    snapshot: bool
    bytes_in_memory: int
    bytes_on_disk: int
    leases: int
    pins: list[str]


class PinView(msgspec.Struct, frozen=True):
    """One pin: the entry that it holds, who pinned it, and when."""

    name: str
    entry: int
    tokens: int
    caller: str
    pinned_us: int


def list_entries(state: State, limit: int = 100, skip: int = 0) -> list[EntryView]:
    """Return entries, most recently used first."""
    return [_view(state, entry) for entry in islice(reversed(state.entries.values()), skip, skip + limit)]


def entry_view(state: State, entry_id: int) -> EntryView | None:
    """Return one entry, or None."""
    entry = state.entries.get(entry_id)
    return _view(state, entry) if entry is not None else None


def list_pins(state: State) -> list[PinView]:
    """Return all pins by name."""
    pins = sorted(state.pins.values(), key=lambda pin: pin.name)
    return [PinView(p.name, p.entry, state.entries[p.entry].length, p.caller, p.pinned_us) for p in pins]


def _view(state: State, entry: Entry) -> EntryView:
    node = state.nodes[entry.node]
    blobs = [state.blobs[blob] for blob in {n.blob for n in state.path(entry.node)}]
    pins = sorted(name for name, pin in state.pins.items() if pin.entry == entry.id) if entry.pins else []
    return EntryView(
        entry=entry.id,
        digest=entry.digest.hex(),
        namespace=entry.namespace,
        model_id=state.namespaces[entry.namespace].model_id,
        session_key=entry.session_key,
        template_sig=entry.template_sig,
        tokens=entry.length,
        origin=entry.origin,
        hits=entry.hits,
        created_us=entry.created_us,
        last_used_us=entry.last_used_us,
        resident=entry.resident,
        snapshot=node.snapshot,
        bytes_in_memory=sum(blob.nbytes for blob in blobs if blob.memory_refs),
        bytes_on_disk=sum(blob.stored_bytes for blob in blobs if blob.disk_state == STORED),
        leases=node.leases,
        pins=pins,
    )


def memory_order(state: State, snapshot: bool, limit: int = 100) -> list[int]:
    """Return the nodes that would leave memory next, in that order, leased and pinned ones included."""
    return list(islice(state.lru[MEMORY, snapshot], limit))
