"""Decisions about the process and its settings rather than about one request."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.policy import LOGIC_VERSION
from mlxcel.core.reasons import RefusalReason
from mlxcel.core.recovery import held_nodes
from mlxcel.core.state import QUEUED, STORED, State

# Why a request that would have used the cache could not: the guide's name for it.
_COLD_REFUSALS = {"disabled": RefusalReason.DISABLED, "unknown_cache_class": RefusalReason.MODEL_OWNED_STATE}


def decide_policy(state: State, c: cmd.AdoptPolicy) -> list[ev.Event]:
    """Take the settings over, with the version of the logic that will decide under them."""
    return [ev.PolicyAdopted(c.policy, LOGIC_VERSION, c.software)]


def decide_namespace(state: State, c: cmd.OpenNamespace) -> list[ev.Event]:
    """Give a new namespace its number; a known one needs no event."""
    if c.key.digest() in state.by_namespace:
        return []
    changed: list[str] = []
    before = _before_change(state, c)
    if before is not None:
        names = sorted(set(before) | set(c.fingerprint_parts))
        changed = [name for name in names if before.get(name) != c.fingerprint_parts.get(name)]
    opened = ev.NamespaceOpened(
        state.next_namespace, state.next_node, c.key, c.model_id, c.kv_bytes_per_token, c.reuse, c.fingerprint_parts,
        changed,
    )  # fmt: skip
    return [opened]


def _before_change(state: State, c: cmd.OpenNamespace) -> dict[str, str] | None:
    """Return what the latest model of this name was made of, None where there is none or this very one was known.

    Newest first: where many tenants share a model the first look is the last.
    """
    latest = None
    for namespace in reversed(state.namespaces.values()):
        if namespace.model_id == c.model_id:
            if namespace.key.model_fingerprint == c.key.model_fingerprint:
                return None
            latest = latest or namespace
    return latest.fingerprint_parts if latest is not None else None


def decide_cold(state: State, c: cmd.ServeCold) -> list[ev.Event]:
    """A request goes past the cache; where that was not its own wish, a refusal says why."""
    events: list[ev.Event] = [ev.RequestServedCold(c.request, c.reason, c.prompt_tokens)]
    refusal = _COLD_REFUSALS.get(c.reason)
    if refusal is not None:
        events.append(ev.ReuseRefused(c.request, "adopt", refusal, c.prompt_tokens, 0, c.detail))
    return events


def decide_reset(state: State, c: cmd.ResetCache) -> list[ev.Event]:
    """Forget everything that no request leases and no pin holds; or pins too, when asked."""
    kept = held_nodes(state, pins_too=not c.include_pins)
    entries = sum(1 for entry in state.entries.values() if entry.node not in kept)
    kept_blobs = {state.nodes[n].blob for n in kept}
    freed = sum(b.nbytes for b in state.blobs.values() if b.id not in kept_blobs and b.memory_refs)
    return [ev.CacheReset(c.caller, entries, freed, c.include_pins)]


def decide_recover(state: State, c: cmd.Recover) -> list[ev.Event]:
    """Settle where the disk differs from the state, then start with empty memory."""
    events: list[ev.Event] = []
    for found in c.found:
        if found.blob in state.blobs and state.blobs[found.blob].disk_state != STORED:
            events.append(ev.PieceSpilled(found.blob, found.stored_bytes))
    for blob in c.missing:
        if blob in state.blobs and state.blobs[blob].disk_state == STORED:
            events.append(ev.SpillFailed(blob, "not in the disk tier at start"))
    requests = len(state.requests)
    return [*events, ev.Recovered(requests, len(c.missing), len(c.found), c.orphans, c.log_cut_bytes, c.detail)]


def compare_inventory(
    state: State, inventory: dict[bytes, int]
) -> tuple[list[int], list[cmd.SpillResult], list[bytes]]:
    """Return (missing blobs, found blobs, orphan keys): how the disk tier's inventory differs from the state."""
    missing = [b.id for b in state.blobs.values() if b.disk_state == STORED and b.key not in inventory]
    found = [
        cmd.SpillResult(b.id, inventory[b.key])
        for b in state.blobs.values()
        if b.disk_state == QUEUED and b.key in inventory
    ]
    orphans = [key for key in inventory if key not in state.blob_by_key]
    return missing, found, orphans
