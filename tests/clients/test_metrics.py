"""Metrics and the trace against the real daemon: each number moves by what happened, and nothing else adds a series."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.http.metrics import REJECT_REASONS
from tests.e2e.daemon import Daemon
from tests.e2e.test_road import prompt

Series = dict[tuple[str, str], float]
KNOWN = prompt(1, 200)


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that traces."""
    with Daemon(talker, tmp_path_factory.mktemp("metrics") / "data", env={"MLXCEL_APC_TRACE": "1"}) as running:
        yield running


def series(daemon: Daemon) -> Series:
    """Return (name, label value) -> value."""
    text = daemon.http.get("/metrics").text
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def moved(before: Series, after: Series) -> Series:
    """Return what changed, times left out."""
    assert set(before) == set(after)
    timed = ("_seconds_total", "_sum", "_s_count", "_s_sum")
    return {k: v - before[k] for k, v in after.items() if v != before[k] and not k[0].endswith(timed)}


CASES = [
    # what is sent, and by how much each series moves
    (
        {"prompt": KNOWN, "max_tokens": 4},
        {
            ("mlxcel_prompt_cache_misses_total", ""): 1,
            ("llamacpp:prompt_tokens_total", ""): 200,
            ("mlxcel_ttft_by_source_ms_count", "cold"): 1,
            ("mlxcel_prompt_tokens_total", ""): 200,
            ("mlxcel_requests_total", ""): 1,
        },
    ),
    (
        {"prompt": [*KNOWN, 5], "max_tokens": 4},
        {
            ("mlxcel_prompt_cache_hits_total", ""): 1,
            ("mlxcel_prompt_cache_prefix_tokens_reused_total", ""): 192,
            ("llamacpp:prompt_tokens_cached_total", ""): 192,
            ("llamacpp:prompt_tokens_total", ""): 9,
            ("mlxcel_ttft_by_source_ms_count", "memory"): 1,
            ("mlxcel_prefill_tokens_saved_count", "memory"): 1,
        },
    ),
    (
        {"prompt": prompt(2, 100), "max_tokens": 1, "cache_prompt": False},
        {("mlxcel_requests_total", ""): 1, ("mlxcel_ttft_by_source_ms_count", "cold"): 1},
    ),
]


def test_each_series_moves_by_what_happened(daemon: Daemon) -> None:
    """A miss, a hit and a bypass move the series of the table by just so much."""
    for body, expected in CASES:
        before = series(daemon)
        answer = daemon.http.post("/v1/completions", json={**body, "temperature": 0, "logit_bias": {"2": -100}})
        assert answer.status_code == 200
        found = moved(before, series(daemon))
        assert {key: found.get(key) for key in expected} == expected


# Facts sheet of the guide, 2.1, without paged_* and last_reject_seq_id: see the route's description.
STATS = """enabled apc_enabled block_size hash kv_cache_mode_effective entries bytes capacity_bytes max_entries hits lookups
hit_rate inserts evictions_lru evictions_ttl rejections_oversized total_blocks_stored unique_block_hashes apc_active_entries
snapshot_entries snapshot_bytes snapshot_capacity_bytes snapshot_max_entries snapshot_bytes_per_entry snapshot_hits
snapshot_lookups snapshot_hit_rate snapshot_inserts snapshot_warmups_run snapshot_warmups_skipped snapshot_evictions_lru
snapshot_evictions_ttl snapshot_supersedes snapshot_self_evictions snapshot_rejections_oversized last_reject_reason
last_reject_request last_reject_context_len last_reject_entry_len last_reject_at_unix_ms"""


def test_stats_have_the_guides_fields(daemon: Daemon, tmp_path: Path, talker: Path) -> None:
    """Every field is there, flat and with a refusal count a reason, also when the cache is switched off."""
    reasons = {f"reject_{reason}" for reason in REJECT_REASONS}
    with Daemon(talker, tmp_path / "data", "--no-prompt-cache") as off:
        without = off.stats()
    for stats in (daemon.stats(), without):
        assert {*STATS.split(), *reasons} <= set(stats)
        assert not [name for name, value in stats.items() if isinstance(value, dict | list)]
    assert (without["enabled"], without["entries"], without["hits"]) == (False, 0, 0)


def test_odd_names_add_no_series(daemon: Daemon) -> None:
    """200 requests with random models, users, keys and paths leave the number of series as it was (B113)."""
    before = series(daemon)
    for n in range(200):
        body = {
            "prompt": [5, 6, 7],
            "max_tokens": 1,
            "model": f'm{n}"\n가',
            "user": f"u{n}",
            "prompt_cache_key": f"k{n}",
        }
        daemon.http.post("/v1/completions", json=body, headers={"user-agent": f"agent {n}"})
        if n % 10 == 0:
            daemon.http.get(f"/no/such/{n}")
    assert set(series(daemon)) == set(before)
    text = daemon.http.get("/metrics").text
    assert "u199" not in text
    assert "k199" not in text


def test_the_trace_has_a_line_a_decision(daemon: Daemon) -> None:
    """A miss, an adoption and a store are one INFO line each, with the guide's fields and no text of the prompt."""
    daemon.complete([*KNOWN, 7, 8], 2)
    lines = [line for line in daemon.log_path.read_text().splitlines() if "apc_event=" in line]
    assert all(" INFO mlxcel.apc: apc_event=" in line for line in lines)
    kinds = {line.split("apc_event=")[1].split()[0] for line in lines}
    assert {"adopt", "miss", "store", "bypass"} <= kinds
    assert all("seq_id=" in line for line in lines)
