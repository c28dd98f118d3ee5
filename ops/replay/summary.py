"""A state in a few numbers, and what changed between two."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.state import State
from mlxcel.core.stats import cache_stats


def summary(state: State) -> dict[str, Any]:
    """Return the state's time, settings, namespaces, statistics and fingerprint, JSON-ready."""
    return {
        "at_us": state.now_us,
        "at": instant(state.now_us),
        "logic_version": state.logic_version,
        "policy": policy_values(state),
        "namespaces": [
            {"id": n.id, "model": n.model_id, "reuse": n.reuse, "entries": _entries_of(state, n.id)}
            for n in state.namespaces.values()
        ],
        "stats": cache_stats(state),
        "fingerprint": fingerprint(state),
    }


def _entries_of(state: State, namespace: int) -> int:
    return sum(1 for entry in state.entries.values() if entry.namespace == namespace)


def policy_values(state: State) -> dict[str, Any]:
    """Return the settings in force as name -> value."""
    return {name: getattr(state.policy, name) for name in state.policy.__struct_fields__}


def instant(at_us: int) -> str:
    """Return a time as ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds")


class Entries(msgspec.Struct, frozen=True):
    """The entries of one state, kept for comparing after the state has moved on: id -> (session, tokens, where it lives)."""

    summary: dict[str, Any]
    entries: dict[int, tuple[str, int, bool]]
    running: list[str]


def picture(state: State) -> Entries:
    """Return what `difference` needs of a state."""
    entries = {e.id: (e.session_key, e.length, e.resident) for e in state.entries.values()}
    return Entries(summary(state), entries, sorted(state.requests))


def difference(before: Entries, after: Entries) -> dict[str, Any]:
    """Return what changed: settings, statistics, namespaces, entries come, gone and moved, requests."""
    old, new = before.summary, after.summary
    return {
        "from": {"at": old["at"], "fingerprint": old["fingerprint"]},
        "to": {"at": new["at"], "fingerprint": new["fingerprint"]},
        "policy": _changed(old["policy"], new["policy"]),
        "stats": _changed(old["stats"], new["stats"]),
        "namespaces_opened": [n for n in new["namespaces"] if n["id"] not in {o["id"] for o in old["namespaces"]}],
        "entries_added": [_entry(e, after) for e in sorted(after.entries.keys() - before.entries.keys())],
        "entries_gone": [_entry(e, before) for e in sorted(before.entries.keys() - after.entries.keys())],
        "entries_moved": [
            {**_entry(e, after), "memory": after.entries[e][2]}
            for e in sorted(before.entries.keys() & after.entries.keys())
            if before.entries[e][1:] != after.entries[e][1:]
        ],
        "requests_begun": sorted(set(after.running) - set(before.running)),
        "requests_over": sorted(set(before.running) - set(after.running)),
    }


def _entry(entry: int, seen: Entries) -> dict[str, Any]:
    session, length, _ = seen.entries[entry]
    return {"entry": entry, "session": session, "tokens": length}


def _changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[Any]]:
    return {k: [old.get(k), new.get(k)] for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)}
