"""Recorded arrivals decided again under other settings, by the same `decide` that the server runs.

Commands are taken over from the log, except for what follows from the cache's contents: positions that prefill newly
computes are sealed on the recorded grid, restores come back at once, writes to disk succeed, sweeps fall due by the clock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.policy import Policy
from mlxcel.core.record import Record
from mlxcel.core.state import QUEUED, State
from mlxcel.core.tokens import count

Change = Callable[[Policy], Policy]


class Served(msgspec.Struct, frozen=True):
    """One request in both worlds: tokens reused as recorded, and as decided under the other settings."""

    request: str
    at_us: int
    prompt_tokens: int
    recorded_tokens: int
    tokens: int
    source: str


class Tally(msgspec.Struct):
    """Sums over requests; evictions count pieces leaving memory."""

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    tokens_saved: int = 0
    evictions: int = 0
    disk_evictions: int = 0

    def hit_rate(self) -> float:
        """Share of requests that reused anything."""
        return self.hits / self.requests if self.requests else 0.0

    def token_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.tokens_saved / self.prompt_tokens if self.prompt_tokens else 0.0


class Redrive:
    """Feeds recorded commands to a state of its own. `state`: where to begin (it is changed). `sweep_us`: 0 for recorded
    sweeps only."""

    def __init__(self, state: State, change: Change, grid_tokens: int = 512, sweep_us: int = 60_000_000) -> None:
        self.state = state
        self.change = change
        self.grid_tokens = grid_tokens
        self.sweep_us = sweep_us
        self.served: list[Served] = []
        self.recorded = Tally()
        self.decided = Tally()
        self.skipped: Counter[str] = Counter()
        self._queue: list[int] = []
        self._nbytes: dict[int, int] = {}
        self._raw_bytes = self._stored_bytes = 0
        self._swept_us = 0
        self._names = {entry.id: (entry.namespace, entry.digest) for entry in state.entries.values()}
        self._namespaces: dict[int, int] = {n: n for n in state.namespaces}
        if state.namespaces:
            self._run(cmd.AdoptPolicy(at_us=state.now_us, policy=change(state.policy)))

    def _run(self, command: cmd.Command) -> list[ev.Event]:
        events = [
            e for e in decide(self.state, command) if not isinstance(e, ev.NamespaceClosed)
        ]  # the log still names it
        apply(self.state, command.at_us, events)
        _count_evictions(self.decided, events)
        self._queue += [
            e.blob
            for e in events
            if isinstance(e, ev.SpillQueued) or (isinstance(e, ev.PieceSealed | ev.SnapshotTaken) and e.spill)
        ]
        return events

    def feed(self, record: Record) -> Served | None:
        """Take over one recorded decision (tokens in full); returns what became of a request that arrives with it."""
        command = record.command
        _count_evictions(self.recorded, record.events)
        self._learn(record.events)
        self._sweep_until(command.at_us)
        known = _FEEDERS.get(type(command))
        if known is None:
            self.skipped[type(command).__name__] += 1
            return None
        return known(self, command, record)

    # ------------------------------------------------------------------ one method a kind of command

    def _policy(self, command: cmd.AdoptPolicy, record: Record) -> None:
        self._run(msgspec.structs.replace(command, policy=self.change(command.policy)))

    def _namespace(self, command: cmd.OpenNamespace, record: Record) -> None:
        self._run(command)
        for event in record.events:
            if isinstance(event, ev.NamespaceOpened):
                self._namespaces[event.namespace] = self.state.by_namespace[command.key.digest()]

    def _arrive(self, command: cmd.AdoptPrefix, record: Record) -> Served | None:
        if command.again:
            return None
        assert isinstance(command.tokens, bytes)
        then = next((e.length for e in record.events if isinstance(e, ev.PrefixAdopted)), 0)
        events = self._run(msgspec.structs.replace(command, namespace=self._namespaces[command.namespace]))
        adopted = next((e for e in events if isinstance(e, ev.PrefixAdopted)), None)
        if adopted is not None and adopted.restore:
            self._run(cmd.RecordRestore(at_us=command.at_us, request=command.request))
        now = adopted.length if adopted else 0
        self._seal_between(command, now, then)
        if command.background:
            return None
        served = Served(
            command.request, command.at_us, count(command.tokens), then, now, adopted.source if adopted else "cold"
        )
        self.served.append(served)
        _count_served(self.recorded, served.prompt_tokens, then)
        _count_served(self.decided, served.prompt_tokens, now)
        return served

    def _seal_between(self, command: cmd.AdoptPrefix, start: int, stop: int) -> None:
        """What was adopted in the recorded world but not here is computed here: chunk by chunk, to one token short of all."""
        namespace = self.state.namespaces[self._namespaces[command.namespace]]
        if namespace.reuse != "prefix":
            return
        assert isinstance(command.tokens, bytes)
        last = count(command.tokens) - 1
        positions = [*range((start // self.grid_tokens + 1) * self.grid_tokens, last, self.grid_tokens), last]
        for position in positions:
            # What prefill computed beyond `stop` was sealed in the recorded world, and comes by its own record.
            if position // namespace.block_size * namespace.block_size <= stop:
                self._run(cmd.SealPrefix(at_us=command.at_us, request=command.request, length=position))

    def _during(self, command: cmd.SealPrefix | cmd.CaptureSnapshot, record: Record) -> None:
        request = self.state.requests.get(command.request)
        if request is not None and command.length > request.adopted:
            self._run(_unawaited(command))

    def _end(self, command: cmd.DonatePrefix | cmd.EndRequest, record: Record) -> None:
        if command.request in self.state.requests:
            self._run(_unawaited(command))
        self._write_queued(command.at_us)

    def _spills(self, command: cmd.RecordSpills, record: Record) -> None:
        self._write_queued(command.at_us)

    def _as_it_was(self, command: cmd.Command, record: Record) -> None:
        self._run(command)

    def _operate(self, command: cmd.PinPrefix | cmd.DemoteEntry | cmd.PromoteEntry, record: Record) -> None:
        """An operator's command about one entry: the entry of equal digest here, if there is one."""
        entry = self._entry(command.entry)
        if not entry:
            self.skipped[type(command).__name__ + " of an entry that is not here"] += 1
            return
        self._run(msgspec.structs.replace(command, entry=entry))
        errand = self.state.requests.get(getattr(command, "request", ""))
        if errand is not None and errand.restore:
            self._run(cmd.RecordRestore(at_us=command.at_us, request=errand.id))

    def _delete(self, command: cmd.DeleteEntries, record: Record) -> None:
        entries = [entry for recorded in command.entries if (entry := self._entry(recorded))]
        self._run(msgspec.structs.replace(command, entries=entries))

    def _entry(self, recorded: int) -> int:
        return self.state.by_digest.get(self._names.get(recorded, (0, b"")), 0)

    def _recover(self, command: cmd.Recover, record: Record) -> None:
        self._write_queued(command.at_us)
        self._run(msgspec.structs.replace(command, missing=[], found=[]))

    def _restored(self, command: cmd.RecordRestore, record: Record) -> None:
        """Restores here came back when they were asked for."""

    # ------------------------------------------------------------------ the world around

    def _sweep_until(self, now_us: int) -> None:
        if not self.sweep_us:
            return
        if not self._swept_us or now_us - self._swept_us > 100 * self.sweep_us:
            self._swept_us = now_us - self.sweep_us
        while now_us - self._swept_us >= self.sweep_us:
            self._swept_us += self.sweep_us
            while any(isinstance(e, ev.SweepDone) and e.more for e in self._run(_sweep_at(self._swept_us))):
                pass

    def _learn(self, events: Iterable[ev.Event]) -> None:
        """Note sizes of pieces and what recorded entry numbers stand for: the other world numbers its own."""
        for event in events:
            if isinstance(event, ev.EntryDonated):
                request = self.state.requests.get(event.request)
                if request is not None:
                    self._names[event.entry] = (request.namespace, event.digest)
            elif isinstance(event, ev.PieceSealed | ev.SnapshotTaken):
                self._nbytes[event.blob] = event.nbytes
            elif isinstance(event, ev.PieceSpilled) and event.blob in self._nbytes:
                self._raw_bytes += self._nbytes.pop(event.blob)
                self._stored_bytes += event.stored_bytes

    def _write_queued(self, at_us: int) -> None:
        """All queued writes succeed, each as small as writes were on the average in the recorded world."""
        waiting, self._queue = self._queue, []
        blobs = [self.state.blobs[b] for b in dict.fromkeys(waiting) if b in self.state.blobs]
        ratio = self._stored_bytes / self._raw_bytes if self._raw_bytes else 1.0
        results = [cmd.SpillResult(b.id, int(b.nbytes * ratio)) for b in blobs if b.disk_state == QUEUED]
        if results:
            self._run(cmd.RecordSpills(at_us=at_us, results=results))


def _unawaited(command: Any) -> cmd.Command:
    """Snapshots that waiting requests would adopt have other numbers here; nobody waits."""
    if getattr(command, "awaited", None):
        command = msgspec.structs.replace(command, awaited=[])
    waiting: cmd.Command = command
    return waiting


def _sweep_at(at_us: int) -> cmd.SweepExpired:
    return cmd.SweepExpired(at_us=at_us)


def _count_evictions(tally: Tally, events: Iterable[ev.Event]) -> None:
    for event in events:
        if isinstance(event, ev.PieceEvicted):
            if event.tier == "memory":
                tally.evictions += 1
            else:
                tally.disk_evictions += 1


def _count_served(tally: Tally, prompt_tokens: int, reused: int) -> None:
    tally.requests += 1
    tally.hits += reused > 0
    tally.prompt_tokens += prompt_tokens
    tally.tokens_saved += reused


_FEEDERS: dict[type, Callable[[Redrive, Any, Record], Served | None]] = {
    cmd.AdoptPolicy: Redrive._policy,
    cmd.OpenNamespace: Redrive._namespace,
    cmd.AdoptPrefix: Redrive._arrive,
    cmd.SealPrefix: Redrive._during,
    cmd.CaptureSnapshot: Redrive._during,
    cmd.DonatePrefix: Redrive._end,
    cmd.EndRequest: Redrive._end,
    cmd.RecordSpills: Redrive._spills,
    cmd.RecordRestore: Redrive._restored,
    cmd.SweepExpired: Redrive._as_it_was,
    cmd.ServeCold: Redrive._as_it_was,
    cmd.ResetCache: Redrive._as_it_was,
    cmd.Recover: Redrive._recover,
    cmd.UnpinPrefix: Redrive._as_it_was,
    cmd.ShrinkMemory: Redrive._as_it_was,
    cmd.PinPrefix: Redrive._operate,
    cmd.DemoteEntry: Redrive._operate,
    cmd.PromoteEntry: Redrive._operate,
    cmd.DeleteEntries: Redrive._delete,
}


def redrive(
    state: State, records: Iterable[Record], change: Change, grid_tokens: int = 512, sweep_us: int = 60_000_000
) -> Redrive:
    """Decide all of `records` again under the changed settings; returns the run with its tallies."""
    run = Redrive(state, change, grid_tokens, sweep_us)
    for record in records:
        run.feed(record)
    return run


def seals(records: Iterable[Record]) -> Iterator[int]:
    """Yield the lengths at which prefill sealed, for finding the recorded chunk size."""
    for record in records:
        if isinstance(record.command, cmd.SealPrefix):
            yield record.command.length
