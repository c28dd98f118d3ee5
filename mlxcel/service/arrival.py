"""Pieces on their way from disk: read on other threads, taken over by the engine thread one at a time as they come."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mlxcel.ports import Engine, Part, Restorer

Ended = Callable[["Arrival", Exception | None, int], None]


class Arrival:
    """One restore. `pieces`: blob -> what has been taken over so far; all of them once `ended` was called without a fault.

    `run` carries a callable to the engine thread. `ended(arrival, fault, blob)` is called there once: without a fault, or
    with the first one and the blob it is about (0: unknown). Nothing happens after `cancel`.
    """

    def __init__(
        self, engine: Engine, blobs: Sequence[int], run: Callable[[Callable[[], None]], None], ended: Ended
    ) -> None:
        self.pieces: dict[int, Any] = {}
        self._engine, self._blobs, self._run, self._ended = engine, list(blobs), run, ended
        self._unfit: tuple[ValueError, int] | None = None
        self._over = False
        self._keys: list[bytes] = []
        self._stop: Callable[[], None] | None = None

    def start(self, restorer: Restorer, keys: Sequence[bytes]) -> None:
        """Begin to read; `keys` are those of the blobs, in order."""
        self._keys = list(keys)
        self._stop = restorer.start(keys, self._arrived, self._done)

    def cancel(self) -> None:
        """Stop reading and let go of what has come. Engine thread."""
        self._over, self.pieces = True, {}
        if self._stop is not None:
            self._stop()

    def _arrived(self, index: int, parts: list[Part], taken: Callable[[], None]) -> None:
        self._run(partial(self._take, index, parts, taken))

    def _take(self, index: int, parts: list[Part], taken: Callable[[], None]) -> None:
        """Copy one piece into MLX's memory, and let the reader go on: its buffer serves the next one."""
        try:
            if not self._over and self._unfit is None:
                self.pieces[self._blobs[index]] = self._engine.piece_from_parts(parts)
        except ValueError as fault:
            self._unfit = ValueError(f"does not fit the model: {fault}"), self._blobs[index]
        finally:
            taken()

    def _done(self, fault: Exception | None) -> None:
        self._run(partial(self._end, fault))

    def _end(self, fault: Exception | None) -> None:
        if self._over:
            return
        self._over = True
        if fault is None and self._unfit is not None:
            self._ended(self, self._unfit[0], self._unfit[1])
            return
        at = getattr(fault, "key", None)
        blob = self._blobs[self._keys.index(at)] if at in self._keys else 0
        self._ended(self, fault, blob)
