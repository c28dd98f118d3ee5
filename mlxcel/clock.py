"""The one real clock. Wall time for the log, kept monotone; a steady clock for measuring."""

import time


class WallClock:
    """Microseconds since 1970 that never go back: after the system clock is set back, time stands still until it catches up."""

    def __init__(self, not_before_us: int = 0) -> None:
        self._last_us = not_before_us

    def now_us(self) -> int:
        """Return the present time, at least what was returned before."""
        self._last_us = max(self._last_us, time.time_ns() // 1000)
        return self._last_us


def steady_s() -> float:
    """Return seconds on a clock that is only good for differences."""
    return time.perf_counter()
