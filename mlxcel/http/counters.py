"""What the HTTP side counts: requests, tokens and times of generations that ended. Starts at 0 with the process."""

import bisect
import threading

from mlxcel.ports import Finished

TTFT_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
DECODE_BUCKETS_TOK_S = (1, 2, 5, 10, 20, 50, 100, 200, 500)
SAVED_BUCKETS = (0, 32, 128, 512, 2048, 8192, 32768, 131072)
SOURCES = ("cold", "memory", "disk", "snapshot")
OUTCOMES = ("stop", "length", "failed", "abandoned")


class Histogram:
    """Counts per upper bound, as Prometheus reads them."""

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, count of values up to it), ending with +Inf."""
        labels = [*(f"{bound}.0" for bound in self.bounds), "+Inf"]
        running, rows = 0, []
        for label, count in zip(labels, self.counts, strict=True):
            running += count
            rows.append((label, float(running)))
        return rows


class HttpCounters:
    """Thread-safe totals. Label values are a closed set: no text of a client becomes a series."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.generation_s = 0.0
        self.active = 0
        self._tenants: dict[str, list[int]] = {}  # requests, hits, prompt tokens, cached tokens
        self.prefill_s = self.decode_s = 0.0
        self.longest_tokens = 0
        self._scraped = (0, 0.0, 0, 0.0)
        self.ttft_by_source = {source: Histogram(TTFT_BUCKETS_MS) for source in SOURCES}
        self.saved_by_source = {source: Histogram(SAVED_BUCKETS) for source in SOURCES}
        self.ttft_ms = Histogram(TTFT_BUCKETS_MS)
        self.decode_tok_s = Histogram(DECODE_BUCKETS_TOK_S)

    def started(self) -> None:
        """A generation was submitted."""
        with self._lock:
            self.active += 1

    def of_tenant(self, tenant: str) -> dict[str, float]:
        """Return what one tenant's requests found since the start."""
        with self._lock:
            lookups, hits, _, cached = self._tenants.get(tenant, [0, 0, 0, 0])
        rate = hits / lookups if lookups else 0.0
        return {"lookups": lookups, "hits": hits, "hit_rate": rate, "prefix_tokens_reused": cached}

    def ended(self, finished: Finished | None, outcome: str = "failed", tenant: str = "") -> None:
        """A generation ended; without `finished` it failed or its client left (`outcome`)."""
        with self._lock:
            self.active -= 1
            if finished is None:
                self.outcomes[outcome if outcome in self.outcomes else "failed"] += 1
                return
            self.outcomes["length" if finished.finish_reason == "length" else "stop"] += 1
            self.prompt_tokens += finished.prompt_tokens
            if tenant:
                sums = self._tenants.setdefault(tenant, [0, 0, 0, 0])
                row = (1, int(finished.cached_tokens > 0), finished.prompt_tokens, finished.cached_tokens)
                self._tenants[tenant] = [old + new for old, new in zip(sums, row, strict=True)]
            self.cached_tokens += finished.cached_tokens
            self.completion_tokens += finished.completion_tokens
            self.generation_s += finished.prefill_s + finished.decode_s
            self.ttft_ms.observe(finished.ttft_s * 1000)
            self._observe_source(finished)
            if finished.decode_s > 0:
                self.decode_tok_s.observe(finished.completion_tokens / finished.decode_s)

    def _observe_source(self, finished: Finished) -> None:
        source = finished.source if finished.source in SOURCES else "cold"
        self.ttft_by_source[source].observe(finished.ttft_s * 1000)
        self.saved_by_source[source].observe(finished.cached_tokens)
        self.prefill_s += finished.prefill_s
        self.decode_s += finished.decode_s
        self.longest_tokens = max(self.longest_tokens, finished.prompt_tokens + finished.completion_tokens)

    def throughput(self) -> tuple[float, float]:
        """Return prompt and generated tokens a second of what ended since the last call; 0.0 where nothing did."""
        with self._lock:
            now = (self.computed_tokens, self.prefill_s, self.completion_tokens, self.decode_s)
            tokens, prefill_s, said, decode_s = (a - b for a, b in zip(now, self._scraped, strict=True))
            self._scraped = now
        return (tokens / prefill_s if prefill_s > 0 else 0.0, said / decode_s if decode_s > 0 else 0.0)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were really computed."""
        return self.prompt_tokens - self.cached_tokens
