"""Folding the log gives the very numbers that /v1/cache/stats showed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import tiny
from tests.e2e.daemon import ROOT, Daemon, environment
from tests.e2e.test_road import prompt
from tests.faults.support import ALWAYS

__all__ = ["tiny"]

LIMITS = ("--prompt-cache-capacity-bytes", "300000", "--prompt-cache-snapshot-max-entries", "5")


def traffic(daemon: Daemon) -> None:
    """Hits, misses, refusals, evictions, requests past the cache, a reset, and new entries after it."""
    for seed in range(4):
        daemon.complete(prompt(seed, 180), 3, user=f"u{seed}")
        daemon.complete([*prompt(seed, 180), 5, 6], 2, user=f"u{seed}")
    daemon.complete(prompt(9, 10), 1)
    daemon.complete(prompt(9, 900), 1)
    daemon.complete(prompt(10, 90), 1, cache_prompt=False)
    daemon.complete([*prompt(3, 80), *prompt(4, 80)], 1, user="u3", cache_ttl_s=100)
    daemon.http.post("/v1/cache/reset").raise_for_status()
    daemon.complete(prompt(1, 120), 2)
    daemon.complete([*prompt(1, 120), 9], 2)


def folded(data: Path) -> dict[str, Any]:
    """Return the statistics that `mlxcel-replay fold` ends with."""
    command = [sys.executable, "-m", "ops.replay", "fold", str(data), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stats: dict[str, Any] = json.loads(done.stdout)["stats"]
    return stats


@pytest.mark.parametrize(("kind", "runs"), [("llama", 1), ("qwen3_next", 2)])
def test_the_log_has_the_numbers_that_were_shown(
    kind: str, runs: int, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every number of the cache's own, at the end of one and of two runs over one log: counts, bytes, the last refusal."""
    data = tmp_path / "data"
    for run in range(runs):
        with Daemon(tiny(kind), data, *ALWAYS, *LIMITS) as daemon:
            traffic(daemon)
            daemon.flush()
            daemon.complete([*prompt(1, 120), 9, 9], 1, cache_no_store=True)
            live = daemon.stats()
            replayed = folded(data)
            assert len(replayed) > 60
            assert {name: live[name] for name in replayed} == replayed
            assert (live["hits"] > 3, live["misses"] > 3, live["served_cold"]) == (True, True, 1), run
            assert live["reject_prefix_too_short"] > 0
            assert live["evictions_lru"] + live["rejections_oversized"] + live["snapshot_supersedes"] > 0
