"""The one real clock. Wall time for the log, kept monotone; a steady clock for measuring."""

import time
from collections.abc import Callable


class WallClock:
    """Microseconds since 1970 that never go back: after the system clock is set back, time goes on from where it was, at
    the steady clock's pace, until the system clock has caught up."""

    def __init__(
        self,
        not_before_us: int = 0,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._last_us, self._steady_us = not_before_us, steady_ns() // 1000

    def now_us(self) -> int:
        """Return the present time, at least what was returned before."""
        steady_us = self._steady_ns() // 1000
        passed_us = max(0, steady_us - self._steady_us)
        self._last_us, self._steady_us = max(self._last_us + passed_us, self._wall_ns() // 1000), steady_us
        return self._last_us


def steady_s() -> float:
    """Return seconds on a clock that is only good for differences."""
    return time.perf_counter()
