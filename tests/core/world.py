"""A small world to decide in: blocks of 4 tokens, segments of 8, 10 bytes a token, a clock that the test moves."""

from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import decode_state, encode_state, fingerprint
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.state import Entry, Node, State
from mlxcel.core.tokens import from_ids

BASE = Policy(
    capacity_bytes=10_000, max_entries=100, ttl_us=0, min_prefix_tokens=4, block_size=4, snapshot_capacity_bytes=1000,
    snapshot_ttl_us=0, disk_capacity_bytes=10_000, disk_ttl_us=0, write_policy="off", segment_tokens=8,
)  # fmt: skip


class World:
    """A state and the commands that move it. Each step is checked for purity and for broken invariants."""

    def __init__(
        self, reuse: str = "prefix", bytes_per_token: int = 10, key: NamespaceKey | None = None, **policy: Any
    ):
        self.state = State()
        self.at_us = 0
        self.asked = 0
        self.policy = msgspec.structs.replace(BASE, **policy)
        self.do(cmd.AdoptPolicy(at_us=0, policy=self.policy))
        self.namespace = self.open(key or NamespaceKey("model", block_size=4), reuse, bytes_per_token)

    def open(self, key: NamespaceKey, reuse: str = "prefix", bytes_per_token: int = 10) -> int:
        """Open a namespace and return its number."""
        command = cmd.OpenNamespace(
            at_us=self.at_us, key=key, model_id="model", kv_bytes_per_token=bytes_per_token, reuse=reuse
        )
        opened = self.do(command)[0]
        assert isinstance(opened, ev.NamespaceOpened)
        return opened.namespace

    def do(self, command: cmd.Command) -> list[ev.Event]:
        """Decide and apply."""
        before = fingerprint(self.state)
        events = decide(self.state, command)
        assert fingerprint(self.state) == before
        apply(self.state, command.at_us, events)
        assert not broken_invariants(self.state)
        return events

    def adopt(self, ids: Any, name: str = "", **fields: Any) -> list[ev.Event]:
        """A prompt arrives; returns what follows after RequestArrived."""
        self.asked += 1
        self.at_us += 1
        fields = {"namespace": self.namespace, "template_sig": "sig", "session_key": "me", **fields}
        command = cmd.AdoptPrefix(at_us=self.at_us, request=name or f"r{self.asked}", tokens=from_ids(ids), **fields)
        events = self.do(command)
        assert isinstance(events[0], ev.RequestArrived)
        return events[1:]

    def seal(self, name: str, length: int, **fields: Any) -> list[ev.Event]:
        """Prefill has come to `length`."""
        return self.do(cmd.SealPrefix(at_us=self.at_us, request=name, length=length, **fields))

    def capture(self, name: str, length: int, nbytes: int = 100, **fields: Any) -> list[ev.Event]:
        """Prefill stands at a boundary."""
        fields = {"origin": "boundary", **fields}
        return self.do(cmd.CaptureSnapshot(at_us=self.at_us, request=name, length=length, nbytes=nbytes, **fields))

    def donate(self, name: str, generated: Any = (), **fields: Any) -> list[ev.Event]:
        """The request ends in health; returns what stands between TokensGenerated and RequestEnded."""
        self.at_us += 1
        total = len(self.state.requests[name].tokens) // 4 + len(generated)
        fields = {"length": total, **fields}
        events = self.do(cmd.DonatePrefix(at_us=self.at_us, request=name, generated=from_ids(generated), **fields))
        assert isinstance(events[0], ev.TokensGenerated)
        assert isinstance(events[-1], ev.RequestEnded)
        return events[1:-1]

    def store(self, ids: Any, session: str = "me", **fields: Any) -> int:
        """One whole request: arrives and donates. Returns its entry's number, 0 if none."""
        donated = {name: fields.pop(name) for name in ("state_nbytes", "live_bytes") if name in fields}
        self.adopt(ids, session_key=session, **fields)
        events = self.donate(f"r{self.asked}", **donated)
        return next((e.entry for e in events if isinstance(e, ev.EntryDonated)), 0)

    def write_all(self) -> list[ev.Event]:
        """The disk tier has written what it was given, byte for byte."""
        queued = [blob for blob in self.state.blobs.values() if blob.disk_state == 1]
        results = [cmd.SpillResult(blob.id, blob.nbytes) for blob in queued]
        return self.do(cmd.RecordSpills(at_us=self.at_us, results=results)) if results else []

    def restart(self) -> list[ev.Event]:
        """The process ends and starts again; what was written is there."""
        return self.do(cmd.Recover(at_us=self.at_us))

    def reload(self) -> None:
        """Go on from the checkpoint's bytes."""
        self.state = decode_state(encode_state(self.state))

    def entry(self, number: int) -> Entry:
        """Return an entry."""
        return self.state.entries[number]

    def node(self, entry: int) -> Node:
        """Return the node where an entry ends."""
        return self.state.nodes[self.state.entries[entry].node]


def brief(events: list[ev.Event]) -> list[tuple[Any, ...]]:
    """Return events as (name, what matters of it), for lists that a test pins."""
    return [_brief(event) for event in events]


def _brief(e: ev.Event) -> tuple[Any, ...]:
    match e:
        case ev.PieceEvicted():
            return ("evicted", e.node, e.tier, e.reason, e.freed_bytes)
        case ev.EntryEvicted():
            return ("entry gone", e.entry, e.reason, e.tier)
        case ev.PieceSealed():
            return ("sealed", e.node, e.parent, e.start, e.tokens)
        case ev.PieceSplit():
            return ("split", e.node, e.head, e.tokens)
        case ev.SnapshotTaken():
            return ("snapshot", e.node, e.parent, e.length, e.tail_tokens)
        case ev.SnapshotSuperseded():
            return ("superseded", e.node, e.by)
        case ev.PrefixSealed():
            return ("kept", e.node, e.length)
        case ev.EntryDonated():
            return ("donated", e.entry, e.node, e.length, e.replaced)
        case ev.PrefixAdopted():
            return ("hit", e.node, e.length, e.source, e.restore)
        case ev.PrefixMissed():
            return ("miss", str(e.reason), e.known_tokens)
        case ev.ReuseRefused():
            return ("refused", e.stage, str(e.reason), e.context_tokens, e.entry_tokens)
    return (type(e).__name__, *(getattr(e, name) for name in e.__struct_fields__))
