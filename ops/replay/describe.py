"""A record in words: one line a person can read, or plain values for a machine."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core import operator_events as op
from mlxcel.core.redecide import Step
from mlxcel.core.tokens import count

COLUMNS = ("seq", "time", "command", "request", "what happened")


def row(step: Step) -> tuple[str, str, str, str, str]:
    """Return the table's columns for one record."""
    command = step.record.command
    when = datetime.fromtimestamp(command.at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    name = type(command).__name__
    return str(step.seq), when, name, getattr(command, "request", ""), happened(command, list(step.record.events))


def happened(command: cmd.Command, events: list[ev.Event]) -> str:
    """Say in a line what was decided."""
    words = [text for event in events if (text := _words(event))]
    sealed = [e for e in events if isinstance(e, ev.PieceSealed)]
    if sealed:
        words.insert(0, f"kept {sum(e.tokens for e in sealed)} tokens in {len(sealed)} pieces")
    evicted = Counter((e.tier, e.reason) for e in events if isinstance(e, ev.PieceEvicted))
    words += [f"evicted {n} pieces from {tier} ({reason})" for (tier, reason), n in sorted(evicted.items())]
    spilled = [e for e in events if isinstance(e, ev.PieceSpilled)]
    if spilled:
        words.append(f"wrote {len(spilled)} pieces, {sum(e.stored_bytes for e in spilled)} bytes")
    return "; ".join(words) or "nothing new"


def _words(event: ev.Event) -> str:
    match event:
        case ev.PolicyAdopted():
            return f"settings in force (logic {event.logic_version})"
        case ev.NamespaceOpened():
            changed = f", {', '.join(event.changed)} changed" if event.changed else ""
            return f"namespace {event.namespace} for {event.model_id} ({event.reuse}{changed})"
        case ev.NamespaceClosed():
            return f"namespace {event.namespace} forgotten: it held nothing"
        case ev.PrefixAdopted():
            return f"hit: {event.length} tokens from {event.source}"
        case ev.PrefixMissed():
            return f"miss: {event.reason} ({event.known_tokens} tokens known)"
        case ev.ReuseRefused():
            return f"refused to {event.stage}: {event.reason}" + (f" ({event.detail})" if event.detail else "")
        case ev.RequestServedCold():
            return f"served cold: {event.reason} ({event.prompt_tokens} tokens)"
        case ev.RequestArrived():
            return f"prompt of {count(event.tokens)} tokens"
        case ev.TokensGenerated():
            return f"{count(event.tokens)} tokens answered"
        case ev.EntryDonated():
            return f"entry {event.entry} of {event.length} tokens donated"
        case ev.SnapshotTaken():
            return f"{event.origin} snapshot at {event.length} tokens"
        case ev.RequestEnded() if event.outcome != "donated":
            return f"ended: {event.outcome}" + (f" ({event.detail})" if event.detail else "")
        case ev.RestoreFailed():
            return f"restore failed: {event.error}"
        case ev.SpillFailed():
            return f"a write failed: {event.error}"
        case ev.PrefixRestored():
            return "restored from disk"
        case ev.CacheReset():
            return f"reset: {event.entries} entries, {event.freed_bytes} bytes"
        case ev.Recovered():
            lost = f", {event.pieces_missing} pieces missing on disk" if event.pieces_missing else ""
            cut = f", {event.log_cut_bytes} bytes of log cut" if event.log_cut_bytes else ""
            return f"started{lost}{cut}"
        case ev.SweepDone():
            return f"swept {event.victims} expired"
    return _operator_words(event)


def _operator_words(event: ev.Event) -> str:
    match event:
        case op.PrefixPinned():
            return f"entry {event.entry} pinned as {event.name!r}"
        case op.PrefixUnpinned():
            return f"pin {event.name!r} of entry {event.entry} lifted"
        case op.EntriesDeleted():
            return f"{len(event.entries)} entries deleted, {event.freed_bytes} bytes"
        case op.PromotionStarted():
            return f"entry {event.entry} is read into memory ({len(event.restore)} pieces)"
        case op.EntryDemoted():
            waits = f", {event.waiting} pieces wait to be written" if event.waiting else ""
            return f"entry {event.entry} left memory, {event.freed_bytes} bytes{waits}"
        case op.OperationRefused():
            return f"refused to {event.operation} {event.subject}: {event.reason}"
        case op.MemoryShrunk():
            return f"memory was short: gave up {event.freed_bytes} bytes, {event.held_bytes} left"
    return ""


def plain(step: Step) -> dict[str, Any]:
    """Return a record as JSON-ready values; tokens as their number only."""
    command = _fields(step.record.command)
    events = [_fields(event) for event in step.record.events]
    return {"seq": step.seq, "at_us": step.record.command.at_us, "command": command, "events": events}


def _fields(message: msgspec.Struct) -> dict[str, Any]:
    values: dict[str, Any] = {"type": type(message).__name__}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if name in ("tokens", "generated") and isinstance(value, bytes):
            value = count(value)
        values[name] = value.hex() if isinstance(value, bytes) else msgspec.to_builtins(value)
    return values
