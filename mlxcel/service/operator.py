"""An operator's questions and commands. Engine thread only; each command is a record that names the caller."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.policy import SECOND_US
from mlxcel.core.tokens import count
from mlxcel.ports import CacheScope, Engine, Restorer
from mlxcel.service import entries as view
from mlxcel.service.arrival import Arrival
from mlxcel.service.cache import CacheService, CacheSuspended
from mlxcel.service.scope import namespace_key

log = logging.getLogger("mlxcel.cache")

KEPT_RECORDS = 4096
MOST_ENTRIES = 500
_TOKENS = ("tokens", "suffix")  # fields that hold a prompt or an answer: only their length is shown
_SECONDS = {"ttl_s": "ttl_us", "snapshot_ttl_s": "snapshot_ttl_us", "disk_ttl_s": "disk_ttl_us"}


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that may change while the daemon runs. None leaves a limit as it is."""

    capacity_bytes: int | None = None
    max_entries: int | None = None
    ttl_s: float | None = None
    min_prefix_tokens: int | None = None
    snapshot_capacity_bytes: int | None = None
    snapshot_max_entries: int | None = None
    snapshot_ttl_s: float | None = None
    disk_capacity_bytes: int | None = None
    disk_ttl_s: float | None = None
    donate_cancelled: bool | None = None


class Operator:
    """`answers` go into `Questions`. `post` runs a callable on the engine thread later."""

    def __init__(
        self,
        cache: CacheService,
        engine: Engine,
        restorer: Restorer | None,
        post: Callable[[str, Any], None],
    ) -> None:
        self.cache = cache
        self.engine = engine
        self.restorer = restorer
        self._post = post
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT_RECORDS)
        self._errands = 0
        cache.watchers.append(self._note)

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Return question -> answer."""
        names = ("entries", "entry", "kept", "delete", "pin", "unpin", "pins", "promote", "demote", "events", "reload")
        return {name: getattr(self, name) for name in (*names, "tenant_stats", "tenant_reset")}

    def _note(self, seq: int, command: cmd.Command, events: list[ev.Event]) -> None:
        """Keep a record as shown: without tokens, so that what is kept stays small."""
        rows = [_event(event) for event in events]
        self._records.append({"seq": seq, "at_us": command.at_us, "command": type(command).__name__, "events": rows})

    # ------------------------------------------------------------------ looking

    def entries(self, wanted: view.EntryFilter, offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """List entries, most recently used first."""
        now = self.cache.now_us()
        found = view.chosen(self.cache.state, wanted, now)
        page = found[offset : offset + min(limit, MOST_ENTRIES)]
        rows = [view.summary(self.cache.state, entry, now) for entry in page]
        return {"total": len(found), "offset": offset, "entries": rows}

    def entry(self, entry: int, with_tokens: bool = False) -> dict[str, Any] | None:
        """Show one entry with its pieces and what happened to it lately; None when there is none."""
        held = self.cache.state.entries.get(entry)
        if held is None:
            return None
        shown = view.detail(self.cache.state, held, self.cache.now_us())
        shown["history"] = [row for row in self._records if _names(row, entry)][-50:]
        if with_tokens:
            shown["token_ids"] = view.token_ids(self.cache.state, held)
        return shown

    def kept(self, scope: CacheScope, tokens: bytes) -> int:
        """Return the scope's session's entry that ends where a prefix ends (its last whole block, where any block can be
        adopted) and whose pieces can all be had; 0 when there is none."""
        state = self.cache.state
        key = namespace_key(self.engine.facts, scope, count(tokens), state.policy.block_size)
        return view.entry_of(state, state.by_namespace.get(key.digest(), 0), scope.session_key, tokens)

    def events(self, since: int = 0, limit: int = 500) -> dict[str, Any]:
        """Return records after position `since`. `oldest`: the first one that is still held here; the log has all."""
        rows = [row for row in self._records if row["seq"] > since][:limit]
        oldest = self._records[0]["seq"] if self._records else None
        return {"events": rows, "next": rows[-1]["seq"] if rows else since, "oldest": oldest}

    def pins(self) -> dict[str, Any]:
        """List pins."""
        state = self.cache.state
        rows = [
            {"name": p.name, "entry": p.entry, "tokens": state.entries[p.entry].length, "caller": p.caller}
            for p in state.pins.values()
        ]
        return {"pins": rows}

    def tenant_stats(self, tenant_prefix: str) -> dict[str, Any]:
        """Return what one tenant's entries hold."""
        policy = self.cache.state.policy
        settings = {"enabled": policy.active, "apc_enabled": policy.apc_enabled, "block_size": policy.block_size}
        return {**settings, **view.held_by(self.cache.state, tenant_prefix)}

    # ------------------------------------------------------------------ changing

    def delete(
        self,
        entries: Sequence[int] | None = None,
        wanted: view.EntryFilter | None = None,
        dry_run: bool = True,
        caller: str = "",
    ) -> dict[str, Any]:
        """End entries, by number or by filter. A dry run only says which."""
        state = self.cache.state
        if entries is None:
            found = view.chosen(state, wanted or view.EntryFilter(), self.cache.now_us())
            entries = [entry.id for entry in found]
        if dry_run:
            known = [state.entries[e] for e in entries if e in state.entries]
            nbytes = sum(view.entry_bytes(state, entry) for entry in known)
            return {"dry_run": True, "entries": [entry.id for entry in known], "bytes": nbytes}
        events = self.cache.run(cmd.DeleteEntries(at_us=self.cache.now_us(), entries=list(entries), caller=caller))
        done = next((e for e in events if isinstance(e, ev.EntriesDeleted)), None)
        return {
            "dry_run": False,
            "entries": done.entries if done else [],
            "freed_bytes": done.freed_bytes if done else 0,
            "refused": _refusals(events),
        }

    def tenant_reset(self, tenant_prefix: str, caller: str = "") -> dict[str, Any]:
        """Forget one tenant's entries in both tiers."""
        done = self.delete(wanted=view.EntryFilter(tenant_prefix=tenant_prefix), dry_run=False, caller=caller)
        return {"cleared": True, "freed_bytes": done["freed_bytes"], "freed_entries": len(done["entries"])}

    def pin(self, name: str, entry: int, caller: str = "") -> dict[str, Any]:
        """Hold an entry under a name."""
        return self._done(cmd.PinPrefix(at_us=self.cache.now_us(), name=name, entry=entry, caller=caller))

    def unpin(self, name: str, caller: str = "") -> dict[str, Any]:
        """Let go of a name."""
        return self._done(cmd.UnpinPrefix(at_us=self.cache.now_us(), name=name, caller=caller))

    def demote(self, entry: int, caller: str = "") -> dict[str, Any]:
        """Take an entry out of memory as far as disk holds it."""
        return self._done(cmd.DemoteEntry(at_us=self.cache.now_us(), entry=entry, caller=caller))

    def reload(self, limits: Limits, caller: str = "") -> dict[str, Any]:
        """Adopt changed limits; what is over them goes with the next decisions."""
        changes: dict[str, Any] = {}
        for name in limits.__struct_fields__:
            value = getattr(limits, name)
            if value is not None:
                changes[_SECONDS.get(name, name)] = int(value * SECOND_US) if name in _SECONDS else value
        policy = msgspec.structs.replace(self.cache.state.policy, **changes)
        command = cmd.AdoptPolicy(at_us=self.cache.now_us(), policy=policy, software={"changed_by": caller})
        self.cache.run(command)
        now = self.cache.state.policy
        return {"policy": {name: getattr(now, name) for name in now.__struct_fields__}}

    def promote(self, entry: int, caller: str = "") -> dict[str, Any]:
        """Start reading an entry into memory."""
        self._errands += 1
        request = f"promote-{self.cache.log.next_seq()}-{self._errands}"
        command = cmd.PromoteEntry(at_us=self.cache.now_us(), request=request, entry=entry, caller=caller)
        events = self.cache.run(command)
        started = next((e for e in events if isinstance(e, ev.PromotionStarted)), None)
        if started is None:
            return {"done": False, "refused": _refusals(events)}
        if self.restorer is None:
            self._end_errand(request, {}, OSError("there is no disk tier"))
            return {"done": False, "refused": [{"reason": "no_disk"}]}
        keys = [self.cache.state.blobs[blob].key for blob in started.restore]

        def guarded(step: Callable[[], None]) -> None:
            try:
                step()
            except (AssertionError, CacheSuspended):
                raise
            except Exception as fault:  # memory may be refused; that costs the errand, not the daemon
                log.warning("entry %d is not promoted: %s: %s", entry, type(fault).__name__, fault)
                arrival.cancel()
                self._end_errand(request, {}, fault)

        arrival = Arrival(
            self.engine,
            started.restore,
            lambda step: self._post("chore", partial(guarded, step)),
            lambda arrival, fault, _: self._end_errand(request, arrival.pieces, fault),
        )
        arrival.start(self.restorer, keys)
        return {"done": True, "pieces": len(keys)}

    def _end_errand(self, request: str, pieces: dict[int, Any], fault: Exception | None) -> None:
        error = "" if fault is None else str(fault) or type(fault).__name__
        command = cmd.RecordRestore(at_us=self.cache.now_us(), request=request, error=error)
        if request in self.cache.state.requests:
            self.cache.run(command, arriving={} if error else pieces)

    def _done(self, command: cmd.Command) -> dict[str, Any]:
        refused = _refusals(self.cache.run(command))
        return {"done": not refused, **({"refused": refused} if refused else {})}


def _refusals(events: Sequence[ev.Event]) -> list[dict[str, str]]:
    return [{"subject": e.subject, "reason": e.reason} for e in events if isinstance(e, ev.OperationRefused)]


def _event(event: ev.Event) -> dict[str, Any]:
    fields = {name: _plain(name, getattr(event, name)) for name in event.__struct_fields__}
    return {"type": type(event).__name__, **fields}


def _plain(name: str, value: Any) -> Any:
    if name in _TOKENS and isinstance(value, bytes):
        return len(value) // 4
    return msgspec.to_builtins(value.hex() if isinstance(value, bytes) else value)


def _names(row: dict[str, Any], entry: int) -> bool:
    def named(event: dict[str, Any]) -> bool:
        several = event.get("entries")
        return event.get("entry") == entry or (isinstance(several, list) and entry in several)

    return any(named(event) for event in row["events"])
