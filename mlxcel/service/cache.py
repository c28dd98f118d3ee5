"""The single writer: command -> decide -> append -> evolve -> carry out. Everything that changes the cache goes through here."""

import logging
from collections.abc import Callable
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import encode_state
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.record import encode_record
from mlxcel.core.state import State
from mlxcel.ports import EventLog, LogUnavailable, ModelFacts, SpillOutcome
from mlxcel.service.tiers import Tiers

log = logging.getLogger("mlxcel.cache")


class CacheSuspended(Exception):
    """The log can't be written, so nothing may be decided: requests go on without the cache. The message says why."""


class CacheService:
    """Owns the state, the log and the tiers. Engine thread only.

    `now_us` is the writer's monotone clock. `watch` is called after each record with (seq, command, events).
    """

    def __init__(self, state: State, event_log: EventLog, tiers: Tiers, now_us: Callable[[], int]) -> None:
        self.state = state
        self.log = event_log
        self.tiers = tiers
        self.now_us = now_us
        self.suspended = ""
        self.watchers: list[Callable[[int, cmd.Command, list[ev.Event]], None]] = []

    def run(
        self, command: cmd.Command, cache: Any = None, state_piece: Any = None, arriving: Any = None
    ) -> list[ev.Event]:
        """Decide, record, apply and carry out one command; returns its events.

        `cache`: the live cache that new pieces are copied from; `state_piece`: a captured state; `arriving`: blob -> piece
        read from disk. Raises CacheSuspended when the log can't be written; the state is then as before.
        """
        if self.suspended:
            raise CacheSuspended(self.suspended)
        events = decide(self.state, command)
        if not events:
            return []
        fresh = self.tiers.copy_out(events, cache, state_piece) if cache is not None else (arriving or {})
        keys = {blob: self.state.blobs[blob].key for blob in _blobs_named(events) if blob in self.state.blobs}
        reset_keys = self._all_keys() if any(isinstance(e, ev.CacheReset) for e in events) else None
        seq = self._append(encode_record(self.state, command, events))
        apply(self.state, command.at_us, events)
        self.tiers.carry_out(seq, events, keys, fresh)
        if reset_keys is not None:
            self.tiers.keep_only(seq, self.state, reset_keys)
        for watch in self.watchers:
            watch(seq, command, events)
        self._settle_unqueued()
        return events

    def _all_keys(self) -> dict[int, bytes]:
        return {blob.id: blob.key for blob in self.state.blobs.values()}

    def _append(self, payload: bytes) -> int:
        try:
            return self.log.append(payload)
        except LogUnavailable as fault:
            self.suspend(f"the event log can't be written: {fault}")
            raise CacheSuspended(self.suspended) from fault

    def suspend(self, reason: str) -> None:
        """Decide nothing more in this process: requests go on cold, the state stays as it is for whoever looks into it."""
        if not self.suspended:
            self.suspended = reason
            log.error("prompt cache suspended, requests are served cold: %s", reason)

    def _settle_unqueued(self) -> None:
        if not self.tiers.not_queued:
            return
        results = [cmd.SpillResult(blob, 0, why) for blob, why in self.tiers.not_queued]
        self.tiers.not_queued = []
        self.run(cmd.RecordSpills(at_us=self.now_us(), results=results))

    # ------------------------------------------------------------------ standing questions and chores

    def namespace(self, facts: ModelFacts, key: NamespaceKey) -> int:
        """Return the number of the namespace, opening it the first time."""
        known = self.state.by_namespace.get(key.digest())
        if known is not None:
            return known
        command = cmd.OpenNamespace(
            at_us=self.now_us(),
            key=key,
            model_id=facts.name,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            reuse=facts.reuse,
            fingerprint_parts=facts.fingerprint_parts,
        )
        for event in self.run(command):
            if isinstance(event, ev.NamespaceOpened) and event.changed:
                log.warning("model %s changed in %s: its old KV is not used", facts.name, ", ".join(event.changed))
        return self.state.by_namespace[key.digest()]

    def record_spills(self, outcomes: list[SpillOutcome]) -> None:
        """Book what the disk tier's writer reports."""
        results = [
            cmd.SpillResult(self.state.blob_by_key[o.key], o.stored_bytes, o.error)
            for o in outcomes
            if o.key in self.state.blob_by_key
        ]
        if results:
            self.run(cmd.RecordSpills(at_us=self.now_us(), results=results))

    def sweep(self, limit: int = 64) -> bool:
        """Drop expired pieces, a bounded number; True when more are waiting."""
        events = self.run(cmd.SweepExpired(at_us=self.now_us(), limit=limit))
        return any(isinstance(e, ev.SweepDone) and e.more for e in events)

    def checkpoint(self) -> int:
        """Open a new log segment with the whole state as its first record; returns its sequence number."""
        if self.suspended:
            raise CacheSuspended(self.suspended)
        try:
            return self.log.open_segment(encode_state(self.state))
        except LogUnavailable as fault:
            self.suspend(f"the event log can't be written: {fault}")
            raise CacheSuspended(self.suspended) from fault


def _blobs_named(events: list[ev.Event]) -> set[int]:
    named: set[int] = set()
    for event in events:
        if isinstance(event, ev.PieceEvicted | ev.SnapshotSuperseded) and event.freed_blob:
            named.add(event.freed_blob)
        elif isinstance(event, ev.SpillQueued):
            named.add(event.blob)
    return named
