"""GET /metrics: the cache's own counts and those of the HTTP side, read at the moment of the scrape.

Nothing is counted twice: cache values are the stats that /v1/cache/stats shows. All label values exist from the start,
and none comes from a client.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from litestar import Request, get
from litestar.response.base import ASGIResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mlxcel.http.context import HttpContext, context_of
from mlxcel.http.counters import HttpCounters
from mlxcel.http.errors import ApiError
from mlxcel.http.metrics_server import server_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REJECT_REASONS = (
    "oversized",
    "disabled",
    "prefix_too_short",
    "mode_mismatch",
    "kv_mode_mismatch",
    "empty_set",
    "layout_constraints",
    "block_boundary_floor",
    "snapshot_diverged",
    "model_owned_state",
    "rope_regime_mismatch",
)
_COUNTERS = {  # metric without _total -> (key of the stats, help)
    "mlxcel_prompt_cache_hits": ("hits", "Requests that adopted cached KV"),
    "mlxcel_prompt_cache_misses": ("misses", "Requests that looked and adopted nothing"),
    "mlxcel_prompt_cache_prefix_tokens_reused": ("prefix_tokens_reused", "Prompt tokens that were not computed again"),
    "mlxcel_prompt_cache_snapshot_hits": ("snapshot_hits", "Requests that restored a snapshot"),
    "mlxcel_prompt_cache_snapshot_misses": ("snapshot_misses", "Snapshot lookups that restored nothing"),
    "mlxcel_prompt_cache_snapshot_tokens_reused": ("snapshot_tokens_reused", "Prompt tokens saved by snapshots"),
    "mlxcel_prompt_cache_disk_hits": ("disk_hits", "Requests that read KV back from disk"),
    "mlxcel_prompt_cache_disk_bytes_written": ("disk_bytes_written", "Bytes that commits to the disk tier wrote"),
    "mlxcel_prompt_cache_disk_pieces_checked": ("disk_pieces_checked", "Stored pieces that scheduled checks have read"),
}
_GAUGES = {
    "mlxcel_prompt_cache_bytes": ("bytes", "Bytes held in memory by all entries"),
    "mlxcel_prompt_cache_entries": ("entries", "Entries alive"),
    "mlxcel_prompt_cache_disk_bytes": ("disk_bytes", "Bytes of pieces that the disk tier holds"),
    "mlxcel_prompt_cache_disk_file_bytes": ("disk_file_bytes", "Size of the disk tier's file"),
    "mlxcel_prompt_cache_disk_bytes_written_per_byte_stored": (
        "disk_bytes_written_per_byte_stored",
        "Bytes written to the disk tier for each byte of pieces stored",
    ),
    "mlxcel_prompt_cache_spill_queue_bytes": ("spill_queue_bytes", "Bytes that wait to be written"),
}
_FAULTS = {  # kind -> key of the stats
    "restore_failed": "restore_failures",
    "write_failed": "spill_failures",
    "write_dropped": "disk_writes_dropped",
    "store_lost": "disk_losses",
    "missing_at_start": "disk_pieces_missing",
    "log_segment_lost": "log_segments_lost",
    "check_found_damage": "disk_damage_found",
}
_LABELLED = {  # metric -> (prefix of the stats keys, label values, help)
    "mlxcel_prompt_cache_evictions": ("evictions_", ("lru", "ttl", "capacity"), "Entries dropped"),
    "mlxcel_prompt_cache_snapshot_evictions": ("snapshot_evictions_", ("lru", "ttl"), "Snapshots dropped"),
    "mlxcel_prompt_cache_reject": ("reject_", REJECT_REASONS, "Refusals to adopt or to keep"),
}


class _Snapshot(Collector):
    """One scrape: a stats snapshot and the HTTP counters, as metric families."""

    def __init__(self, stats: Mapping[str, Any], counters: HttpCounters) -> None:
        self._stats = stats
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield every family, with 0 for what the stats do not hold."""
        yield from self._cache()
        yield from self._http()

    def _value(self, key: str) -> float:
        if key not in self._stats and key.endswith("misses"):
            prefix = key.removesuffix("misses")
            return self._value(f"{prefix}lookups") - self._value(f"{prefix}hits")
        return float(self._stats.get(key) or 0)

    def _cache(self) -> Iterator[Metric]:
        for name, (key, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._value(key))
        for name, (key, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=self._value(key))
        for name, (prefix, values, text) in _LABELLED.items():
            family = CounterMetricFamily(name, text, labels=["reason"])
            for value in values:
                family.add_metric([value], self._value(prefix + value))
            yield family

        yield from self._trouble()

    def _trouble(self) -> Iterator[Metric]:
        faults = CounterMetricFamily("mlxcel_prompt_cache_faults", "What faults cost the cache", labels=["kind"])
        for kind, key in _FAULTS.items():
            faults.add_metric([kind], self._value(key))
        yield faults
        off = float(bool(self._stats.get("suspended")))
        yield GaugeMetricFamily("mlxcel_prompt_cache_suspended", "1 while the log can't be written", value=off)
        off = float(bool(self._stats.get("disk_fault")))
        yield GaugeMetricFamily("mlxcel_prompt_cache_disk_fault", "1 while the disk tier can't be used", value=off)

    def _http(self) -> Iterator[Metric]:
        counters = self._counters
        yield from server_families(counters, self._value)
        outcomes = CounterMetricFamily("mlxcel_generations", "Generations that ended", labels=["outcome"])
        for outcome, count in counters.outcomes.items():
            outcomes.add_metric([outcome], count)
        yield outcomes
        total = sum(counters.outcomes.values())
        yield CounterMetricFamily("mlxcel_requests", "Generations that ended, of any outcome", value=total)
        yield CounterMetricFamily("mlxcel_prompt_tokens", "Prompt tokens", value=counters.prompt_tokens)
        yield CounterMetricFamily("mlxcel_completion_tokens", "Generated tokens", value=counters.completion_tokens)
        yield CounterMetricFamily("mlxcel_generation_time_seconds", "Prefill and decode", value=counters.generation_s)
        yield GaugeMetricFamily("mlxcel_requests_active", "Generations that run or wait", value=counters.active)
        for name, text, histogram in (
            ("mlxcel_request_ttft_ms", "Time to the first token, milliseconds", counters.ttft_ms),
            ("mlxcel_request_decode_tok_s", "Decoded tokens a second", counters.decode_tok_s),
        ):
            yield HistogramMetricFamily(name, text, buckets=histogram.cumulative(), sum_value=histogram.total)


async def _stats(context: HttpContext) -> Mapping[str, Any]:
    """Return the cache's stats; before a model is loaded there are none, and a scrape still gets its zeros."""
    try:
        stats: Mapping[str, Any] = await context.ask("stats")
    except ApiError:
        return {}
    return stats


_STARTED_S = time.time()


@get("/metrics", summary="Prometheus metrics (needs --metrics)")
async def metrics(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Prometheus text format."""
    context = context_of(request)
    if not context.settings.metrics:
        raise ApiError("not_enabled", "This server was started without --metrics.")
    registry = CollectorRegistry()
    registry.register(_Snapshot(await _stats(context), context.counters))
    return ASGIResponse(
        body=generate_latest(registry),
        media_type=CONTENT_TYPE,
        headers={"Process-Start-Time-Unix": str(int(_STARTED_S))},
        encoding="utf-8",
    )
