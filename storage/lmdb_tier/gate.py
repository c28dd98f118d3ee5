"""Readers and the few moments in which nobody may read: LMDB's map can only be moved while no transaction is open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many `shared` holders or one `exclusive` one; a waiting exclusive holder keeps new shared ones out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = 0
        self._exclusive = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold for the length of a read transaction."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive)
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold while the map is moved or the environment closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive)
            self._exclusive = True
            self._changed.wait_for(lambda: self._shared == 0)
        try:
            yield
        finally:
            with self._changed:
                self._exclusive = False
                self._changed.notify_all()
