"""MLXCEL_APC_TRACE=1: one INFO line a cache decision (guide, "diagnosis"; field names: facts sheet 3.3)."""

import logging
from collections.abc import Sequence

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.tokens import count

log = logging.getLogger("mlxcel.apc")


def trace_line(event: ev.Event, total_tokens: int = 0) -> str | None:
    """Return the line of one event, None for one that is no decision about reuse. `total_tokens`: of the prompt.

    `node` names the piece or snapshot that matched, as `mlxcel cache show` and the log do.
    """
    match event:
        case ev.PrefixAdopted():
            return (
                f"apc_event=adopt seq_id={event.request} matched_len={event.length} total_tokens={total_tokens} "
                f"source={event.source} node={event.node} restored_pieces={len(event.restore)}"
            )
        case ev.PrefixMissed():
            return f"apc_event=miss seq_id={event.request} reason={event.reason} known_len={event.known_tokens}"
        case ev.ReuseRefused():
            return (
                f"apc_event=reject reason={event.reason} seq_id={event.request} context_len={event.context_tokens} "
                f"entry_len={event.entry_tokens} stage={event.stage} detail={event.detail!r}"
            )
        case ev.EntryDonated():
            return f"apc_event=store seq_id={event.request} matched_len={event.length} origin={event.origin}"
        case ev.SnapshotTaken():
            return f"apc_event=store seq_id={event.request} matched_len={event.length} origin={event.origin} snapshot=1"
        case ev.RequestServedCold():
            return f"apc_event=bypass seq_id={event.request} reason={event.reason} context_len={event.prompt_tokens}"
    return None


def trace(seq: int, command: cmd.Command, events: Sequence[ev.Event]) -> None:
    """Log the decisions of one record; a watcher of the cache."""
    total = next((count(event.tokens) for event in events if isinstance(event, ev.RequestArrived)), 0)
    for event in events:
        if (line := trace_line(event, total)) is not None:
            log.info("%s", line)
