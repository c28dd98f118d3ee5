"""A token bucket that decides how long background work has to wait."""


class Pace:
    """At most `rate_bytes_s` on average, with bursts of `burst_bytes`. The caller gives the time, in seconds."""

    def __init__(self, rate_bytes_s: float, burst_bytes: float, now_s: float) -> None:
        self._rate, self._burst = rate_bytes_s, burst_bytes
        self._allowed, self._at_s = burst_bytes, now_s

    def delay(self, nbytes: int, now_s: float) -> float:
        """Spend `nbytes`; returns how many seconds to wait before using them (0 when they are within the burst)."""
        self._allowed = min(self._burst, self._allowed + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        self._allowed -= nbytes
        return max(0.0, -self._allowed / self._rate)

    def forget(self, now_s: float) -> None:
        """Start afresh with a full burst, after a time without pacing."""
        self._allowed, self._at_s = self._burst, now_s
