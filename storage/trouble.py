"""Saying once that something has begun to fail, not once for each try."""

import logging

_log = logging.getLogger(__name__)


class Trouble:
    """One warning when `what` begins to fail and one when it works again; counts elsewhere say how much it was."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._fault = ""
        self._failures = 0

    def failed(self, fault: str) -> None:
        """Note a failed write."""
        self._failures += 1
        if not self._fault:
            _log.warning("%s: writing fails, the cache goes on in memory: %s", self._what, fault)
        self._fault = fault

    def worked(self) -> None:
        """Note one that succeeded."""
        if self._fault:
            _log.warning("%s: writing works again after %d failed groups", self._what, self._failures)
        self._fault, self._failures = "", 0
