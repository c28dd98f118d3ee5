"""Damage in the disk tier that a check has found before any request met it. Engine thread only.

A piece that memory still holds is written again. Any other is let go of the way a request would that had met the damage:
its path is adopted in the background, the restore is recorded as failed, and the next request computes it anew.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.state import STORED, Blob, Node
from mlxcel.core.tokens import TOKEN_BYTES
from mlxcel.service.cache import CacheService

log = logging.getLogger("mlxcel.cache")

OUTCOME = "disk_check"  # of the errands in the log
MOST_TRIES = 8  # nodes that are asked for before damage is left to whoever meets it
_ONE_MORE = bytes(TOKEN_BYTES)  # a request computes one token at least, so it asks for one more than it adopts


class DiskDamage:
    """Books what checks of the disk tier read and found."""

    def __init__(self, cache: CacheService) -> None:
        self.cache = cache
        self._checked = self._found = self._errands = 0  # since the process began

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Return question -> answer."""
        return {"disk_checked": self.disk_checked}

    def counts(self) -> dict[str, int]:
        """Return what was read and found since the process began."""
        return {"disk_pieces_checked": self._checked, "disk_damage_found": self._found}

    def disk_checked(self, pieces: int, faulty: Mapping[bytes, str]) -> dict[str, int]:
        """Take note of `pieces` that were read, and deal with the faulty ones (key -> reason); returns what became of them:
        `gone` are those that the state let go of meanwhile, for whatever reason. Raises CacheSuspended.
        """
        self._checked += pieces
        done = {"rewritten": 0, "dropped": 0, "left": 0, "gone": 0}
        for key in sorted(faulty, key=self._start):  # what lies deeper goes with what it stands on
            fate = self._deal(key, faulty[key])
            done[fate] += 1
            if fate != "gone":
                self._found += 1
                log.error("disk tier: a check found damage (%s); the piece is %s", faulty[key], fate)
        return done

    def _start(self, key: bytes) -> int:
        state = self.cache.state
        blob = state.blobs.get(state.blob_by_key.get(key, 0))
        return min((state.nodes[node_id].start for node_id in blob.nodes), default=0) if blob is not None else 0

    def _deal(self, key: bytes, reason: str) -> str:
        state = self.cache.state
        blob = state.blobs.get(state.blob_by_key.get(key, 0))
        if blob is None or blob.disk_state != STORED:
            return "gone"
        if blob.memory_refs:
            return "rewritten" if self._rewrite(blob) else "left"
        readers = islice(self._readers(blob), MOST_TRIES)
        return "dropped" if any(self._give_up(node, blob, reason) for node in readers) else "left"

    def _rewrite(self, blob: Blob) -> bool:
        tiers = self.cache.tiers
        if tiers.spill is None:
            return False
        parts = tiers.engine.piece_parts(tiers.pieces[blob.id])
        return tiers.spill.submit(self.cache.log.next_seq() - 1, blob.key, parts, blob.nbytes)

    def _readers(self, blob: Blob) -> Iterator[Node]:
        """Yield nodes whose adoption reads the blob: its own, then those below, nearest first. Of a model that goes on from
        captured states only, those."""
        state = self.cache.state
        level = [state.nodes[node_id] for node_id in blob.nodes]
        while level:
            for node in level:
                if node.snapshot or state.namespaces[node.namespace].reuse == "prefix":
                    yield node
            kinds = [kind for node in level for kind in (node.snapshots, node.children) if kind]
            level = [state.nodes[child] for kind in kinds for child in kind.values()]

    def _give_up(self, node: Node, blob: Blob, reason: str) -> bool:
        """Adopt the path to `node`; if that reads the blob, say that it can't be had."""
        cache = self.cache
        self._errands += 1
        request = f"check-{cache.log.next_seq()}-{self._errands}"
        events = cache.run(
            cmd.AdoptPrefix(
                at_us=cache.now_us(),
                request=request,
                namespace=node.namespace,
                template_sig=node.template_sig,
                session_key=node.session_key,
                tokens=cache.state.path_tokens(node.id) + _ONE_MORE,
                store=False,
                background=True,
            )
        )
        read = any(isinstance(event, ev.PrefixAdopted) and blob.id in event.restore for event in events)
        if read:
            cache.run(cmd.RecordRestore(at_us=cache.now_us(), request=request, lost=blob.id, error=reason))
        cache.run(cmd.EndRequest(at_us=cache.now_us(), request=request, outcome=OUTCOME))
        return read
