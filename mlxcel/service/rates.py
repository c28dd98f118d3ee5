"""Measured speeds of prefill and restore, smoothed, so that a decision can compare the two. Values go into commands."""


class Rates:
    """Exponentially smoothed rates; 0.0 until measured. `prefill` in tokens a second, `restore` in raw bytes a second.

    With `restore="always"` decisions never see them, so that what is on disk is read back whatever it costs.
    """

    def __init__(self, weight: float = 0.2, restore: str = "measured") -> None:
        self._weight = weight
        self._restore = restore
        self.prefill_tokens_per_s = 0.0
        self.restore_bytes_per_s = 0.0

    def measured(self) -> tuple[float, float]:
        """Return (prefill tokens/s, restore bytes/s) for a decision; zeros leave it nothing to compare."""
        if self._restore == "always":
            return 0.0, 0.0
        return self.prefill_tokens_per_s, self.restore_bytes_per_s

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Note one prefill chunk."""
        if tokens > 0 and seconds > 0:
            self.prefill_tokens_per_s = self._smooth(self.prefill_tokens_per_s, tokens / seconds)

    def saw_restore(self, nbytes: int, seconds: float) -> None:
        """Note one restore, from its start to the last array."""
        if nbytes > 0 and seconds > 0:
            self.restore_bytes_per_s = self._smooth(self.restore_bytes_per_s, nbytes / seconds)

    def _smooth(self, old: float, new: float) -> float:
        return new if old == 0 else old + self._weight * (new - old)
