"""Carrying out decisions: pieces in memory, writes behind, deletes. The tiers have no opinion; they do what events say."""

import logging
from collections.abc import Iterable
from typing import Any

from mlxcel.core import events as ev
from mlxcel.core.state import State
from mlxcel.ports import Engine, SpillWriter

log = logging.getLogger("mlxcel.cache")


class Tiers:
    """The memory tier (blob number -> detached piece) and the hand-over to the disk tier. Engine thread only."""

    def __init__(self, engine: Engine, spill: SpillWriter | None) -> None:
        self.engine = engine
        self.spill = spill
        self.pieces: dict[int, Any] = {}
        self.not_queued: list[tuple[int, str]] = []  # blobs whose write could not be queued, and why

    def copy_out(self, events: Iterable[ev.Event], cache: Any, state_piece: Any) -> dict[int, Any]:
        """Detach what the events will keep, before anything is recorded. `state_piece`: the captured state, if any.

        Returns blob -> piece. Raises whatever MLX raises when memory runs out; nothing has happened then.
        """
        fresh: dict[int, Any] = {}
        for event in events:
            if isinstance(event, ev.PieceSealed):
                piece = self.engine.copy_rows(cache, event.start, event.start + event.tokens)
                held = self.engine.piece_bytes(piece)
                assert held == event.nbytes, f"a piece of {held} bytes was decided to have {event.nbytes}"
                fresh[event.blob] = piece
            elif isinstance(event, ev.SnapshotTaken):
                fresh[event.blob] = state_piece
        return fresh

    def carry_out(self, seq: int, events: Iterable[ev.Event], keys: dict[int, bytes], fresh: dict[int, Any]) -> None:
        """Do what the events of record `seq` say. `keys`: blob -> key as they were before the events were applied."""
        for event in events:
            match event:
                case ev.PieceSealed() | ev.SnapshotTaken():
                    self.pieces[event.blob] = fresh[event.blob]
                    if event.spill:
                        self._queue(seq, event.blob, event.key, event.nbytes)
                case ev.SpillQueued():
                    piece = self.pieces[event.blob]
                    self._queue(seq, event.blob, keys[event.blob], self.engine.piece_bytes(piece))
                case ev.PieceEvicted(tier="memory"):
                    self.pieces.pop(event.freed_blob, None)
                case ev.PieceEvicted(tier="disk"):
                    self._delete(seq, event.freed_blob, keys)
                case ev.SnapshotSuperseded():
                    self.pieces.pop(event.freed_blob, None)
                    self._delete(seq, event.freed_blob, keys)
                case ev.PieceRestored():
                    if event.nodes and event.blob in fresh:
                        self.pieces[event.blob] = fresh[event.blob]

    def keep_only(self, seq: int, state: State, keys: dict[int, bytes]) -> None:
        """After a reset: let go of everything that the state no longer knows."""
        gone = [blob for blob in keys if blob not in state.blobs]
        for blob in gone:
            self.pieces.pop(blob, None)
        if self.spill is not None and gone:
            self.spill.delete(seq, [keys[blob] for blob in gone])

    def _queue(self, seq: int, blob: int, key: bytes, nbytes: int) -> None:
        if self.spill is None:
            self.not_queued.append((blob, "there is no disk tier"))
        elif not self.spill.submit(seq, key, self.engine.piece_parts(self.pieces[blob]), nbytes):
            self.not_queued.append((blob, "the write queue is full"))

    def _delete(self, seq: int, blob: int, keys: dict[int, bytes]) -> None:
        if blob and self.spill is not None and blob in keys:
            self.spill.delete(seq, [keys[blob]])
