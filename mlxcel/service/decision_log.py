"""The guide's log lines about cache decisions, at its levels (fields: facts sheet 3.3). No line holds text of a prompt.

Hits, misses and what was kept are DEBUG. What an operator should act on is a WARNING, once: a store that is smaller than one
entry, a session that pushes itself out.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.state import Request
from mlxcel.core.tokens import count
from mlxcel.service.cache import CacheService

log = logging.getLogger("mlxcel.cache")

MOST_SESSIONS = 4096  # of those that were warned about, so that names can't fill the memory
_STORES = {  # kind -> (how the core begins its detail, flag, variable)
    "KV": ("entry of", "--prompt-cache-capacity-bytes", "MLXCEL_PROMPT_CACHE_CAPACITY_BYTES"),
    "snapshot": (
        "snapshot of",
        "--prompt-cache-snapshot-capacity-bytes",
        "MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES",
    ),
}


class DecisionLog:
    """A watcher of the cache. Engine thread only."""

    def __init__(self, cache: CacheService) -> None:
        self._cache = cache
        self._oversized: set[str] = set()
        self._self_evicted: set[str] = set()
        self._lines: dict[type, Callable[[Any], None]] = {
            ev.PrefixAdopted: self._adopted,
            ev.PrefixRestored: self._restored,
            ev.RestoreFailed: self._restore_failed,
            ev.PrefixMissed: self._missed,
            ev.ReuseRefused: self._refused,
            ev.SnapshotTaken: self._taken,
        }

    def watch(self, seq: int, command: cmd.Command, events: Sequence[ev.Event]) -> None:
        """Log what one record decided."""
        for event in events:
            if (line := self._lines.get(type(event))) is not None:
                line(event)

    def _request(self, name: str) -> Request | None:
        """Return a request that somebody waits for; the record may have ended it, too."""
        request = self._cache.state.requests.get(name)
        return None if request is None or request.background else request

    def _adopted(self, e: ev.PrefixAdopted) -> None:
        if not e.restore:
            self._hit(e.request)

    def _restored(self, e: ev.PrefixRestored) -> None:
        self._hit(e.request)

    def _hit(self, name: str) -> None:
        request = self._request(name)
        if request is None or not log.isEnabledFor(logging.DEBUG):
            return
        node, total = self._cache.state.nodes[request.node], count(request.tokens)
        if node.snapshot:
            log.debug(
                "prompt cache snapshot hit: seq_id=%s matched=%d stored=%d total=%d partial=%s source=%s",
                name, request.adopted, node.end, total, str(request.adopted < node.end).lower(), request.source,
            )  # fmt: skip
        else:
            log.debug(
                "prompt cache hit: seq_id=%s matched=%d total=%d source=%s: adopted %d/%d tokens",
                name, request.adopted, total, request.source, request.adopted, total,
            )  # fmt: skip
            if node.end >= total and self._cache.state.path_tokens(node.id).startswith(request.tokens):
                log.debug(
                    "prompt cache whole-prompt match: seq_id=%s matched=%d adopted=%d reuse_cap=%d",
                    name, total, request.adopted, total - 1,
                )  # fmt: skip

    def _restore_failed(self, e: ev.RestoreFailed) -> None:
        log.debug("prompt cache adoption failed: seq_id=%s %s; prefilling cold", e.request, e.error)

    def _missed(self, e: ev.PrefixMissed) -> None:
        if self._request(e.request) is not None:
            log.debug(
                "prompt cache adoption failed: seq_id=%s %s, known=%d; prefilling cold",
                e.request, e.reason, e.known_tokens,
            )  # fmt: skip

    def _refused(self, e: ev.ReuseRefused) -> None:
        if e.stage == "donate":
            self._not_kept(e)
        elif e.reason == "snapshot_diverged":
            request = self._request(e.request)
            log.debug(
                "prompt cache snapshot diverged: seq_id=%s common_prefix=%d stored_len=%d request_len=%d",
                e.request, e.context_tokens, e.entry_tokens, count(request.tokens) if request else 0,
            )  # fmt: skip
        elif e.reason == "layout_constraints":
            log.debug(
                "prompt cache whole-prompt match declined: seq_id=%s matched=%d stored=%d reuse_cap=%d",
                e.request, e.context_tokens, e.entry_tokens, e.context_tokens - 1,
            )  # fmt: skip
        else:
            log.debug("prompt cache adoption refused: seq_id=%s %s %s", e.request, e.reason, e.detail)

    def _not_kept(self, e: ev.ReuseRefused) -> None:
        for store, (beginning, flag, variable) in _STORES.items():
            if e.reason == "oversized" and e.detail.startswith(beginning) and store not in self._oversized:
                self._oversized.add(store)
                log.warning(
                    "the %s store is smaller than one entry: %s (%d tokens). It is not kept, and each turn of such a prompt is "
                    "computed anew; raise %s (%s) to an entry's size times the number of conversations",
                    store, e.detail, e.context_tokens, flag, variable,
                )  # fmt: skip
        log.debug(
            "prompt cache donation skipped: seq_id=%s token_len=%d %s %s",
            e.request, e.context_tokens, e.reason, e.detail,
        )  # fmt: skip

    def _taken(self, e: ev.SnapshotTaken) -> None:
        log.debug(
            "prompt cache snapshot inserted: seq_id=%s token_len=%d entry_bytes=%d bytes=%d origin=%s",
            e.request, e.length, e.nbytes, self._cache.state.memory_bytes[True], e.origin,
        )  # fmt: skip
        if not e.self_evictions or e.session_key in self._self_evicted:
            return
        if len(self._self_evicted) < MOST_SESSIONS:
            self._self_evicted.add(e.session_key)
            log.warning(
                "a session pushes its own snapshots out of memory (seq_id=%s): the snapshot store has no room for one "
                "conversation; raise --prompt-cache-snapshot-capacity-bytes "
                "(MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES) or --prompt-cache-snapshot-max-entries",
                e.request,
            )
