"""Every metric that the guide and its facts sheet (3.2) name: exported under that name with all labels, or why not here."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.core.reasons import RefusalReason
from tests.e2e.daemon import Daemon

REASONS = [str(reason) for reason in RefusalReason]
TTFT_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
NONE: list[str] = [""]
# type and name -> the values of its one label
EXPORTED = {
    # the guide's table
    "counter mlxcel_prompt_cache_hits": NONE,
    "counter mlxcel_prompt_cache_misses": NONE,
    "counter mlxcel_prompt_cache_prefix_tokens_reused": NONE,
    "counter mlxcel_prompt_cache_evictions": ["lru", "ttl", "capacity"],
    "gauge mlxcel_prompt_cache_bytes": NONE,
    "gauge mlxcel_prompt_cache_entries": NONE,
    # the facts sheet's
    "counter mlxcel_prompt_cache_snapshot_hits": NONE,
    "counter mlxcel_prompt_cache_snapshot_misses": NONE,
    "counter mlxcel_prompt_cache_snapshot_tokens_reused": NONE,
    "counter mlxcel_prompt_cache_snapshot_evictions": ["lru", "ttl"],
    "counter mlxcel_prompt_cache_reject": REASONS,
    "counter mlxcel_requests": NONE,
    "counter mlxcel_prompt_tokens": NONE,
    "counter mlxcel_completion_tokens": NONE,
    "counter mlxcel_generation_time_seconds": NONE,
    "gauge mlxcel_slots_total": NONE,
    "gauge mlxcel_slots_available": NONE,
    "gauge mlxcel_queue_depth": NONE,
    "gauge mlxcel_batch_current_size": NONE,
    "histogram mlxcel_request_ttft_ms": [*(f"{bound}.0" for bound in TTFT_BUCKETS_MS), "+Inf"],
    "histogram mlxcel_request_decode_tok_s": [],  # the sheet names no bounds
    "counter llamacpp:prompt_tokens": NONE,
    "counter llamacpp:prompt_tokens_cached": NONE,
    "counter llamacpp:prompt_seconds": NONE,
    "counter llamacpp:tokens_predicted": NONE,
    "counter llamacpp:tokens_predicted_seconds": NONE,
    "gauge llamacpp:n_tokens_max": NONE,
    "gauge llamacpp:prompt_tokens_seconds": NONE,
    "gauge llamacpp:predicted_tokens_seconds": NONE,
    "gauge llamacpp:requests_processing": NONE,
    "gauge llamacpp:requests_deferred": NONE,
    # asked for beyond the guide
    "histogram mlxcel_ttft_by_source_ms": ["cold", "memory", "disk", "snapshot"],
    "histogram mlxcel_prefill_tokens_saved": ["cold", "memory", "disk", "snapshot"],
}
# how names begin -> why there is nothing to count
ABSENT = {
    "mlxcel_cache_pool_": "KV is kept in pieces; there is no pool of pages",
    "mlxcel_paged_": "no paged attention",
    "mlxcel_cascade_": "no paged attention",
    "mlxcel_decode_storage_": "KV has one form",
    "mlxcel_lang_bias_": "no language bias",
    "mlxcel_pp_": "one machine, no pipeline",
    "llamacpp:spec_decode_": "no speculative decoding",
    "llamacpp:n_decode": "steps of the engine are not the cache's concern",
    "llamacpp:n_busy_slots_per_decode": "steps of the engine are not the cache's concern",
    "mlxcel_batch_decode_": "steps of the engine are not the cache's concern",
    "mlxcel_batch_prefill_": "steps of the engine are not the cache's concern",
}


@pytest.fixture(scope="module")
def families(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The first scrape of a daemon that nobody has asked anything: type and name -> label values."""
    with Daemon(talker, tmp_path_factory.mktemp("names") / "data") as daemon:
        answer = daemon.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(answer.headers["process-start-time-unix"]) > 10**9
    found: dict[str, list[str]] = {}
    for family in text_string_to_metric_families(answer.text):
        values = found.setdefault(f"{family.type} {family.name}", [])
        for sample in family.samples:
            if sample.name.endswith("_created") or sample.value:
                continue
            label = "source" if "source" in sample.labels else next(iter(sample.labels), "")
            values.append(sample.labels.get(label, ""))
    return found


@pytest.mark.parametrize("row", EXPORTED)
def test_a_metric_is_there_from_the_start(row: str, families: dict[str, list[str]]) -> None:
    """Name, type and all label values, each 0 before the first request."""
    assert row in families
    expected = [value for value in EXPORTED[row] if value]
    if row.removeprefix("gauge ") not in ("mlxcel_slots_total", "mlxcel_slots_available"):
        assert set(expected) <= set(families[row])
        assert families[row]


@pytest.mark.parametrize("beginning", ABSENT)
def test_what_has_no_meaning_is_not_exported(beginning: str, families: dict[str, list[str]]) -> None:
    """No series that would stay at 0 for ever for want of the thing that it counts."""
    assert not [row for row in families if row.split(" ")[1].startswith(beginning)]
