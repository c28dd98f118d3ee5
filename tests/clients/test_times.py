"""Times to live end at the lookup: here no sweep ever comes by itself."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import tiny
from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt
from tests.faults.support import ALWAYS

__all__ = ["tiny"]

NEVER_SWEPT = ("--sweep-interval", "3600", *ALWAYS)
Tiny = Callable[[str], Path]


def miss_reasons(daemon: Daemon) -> list[str]:
    """Return why lookups found nothing, in order."""
    records = daemon.http.get("/admin/events").json()["events"]
    return [event["reason"] for record in records for event in record["events"] if event["type"] == "PrefixMissed"]


@pytest.mark.parametrize("kind", [pytest.param("llama", marks=pytest.mark.slow), "qwen3_next"])
def test_a_requests_own_time_is_over_at_the_lookup(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    """What a request stored for a second is no hit after that, in neither tier nor after a restart; another's stays one."""
    brief, lasting = prompt(1, 200), prompt(2, 200)
    with Daemon(tiny(kind), tmp_path / "data", *NEVER_SWEPT) as daemon:
        daemon.complete(brief, 2, cache_ttl_s=1.0, user="brief")
        daemon.complete(lasting, 2, user="lasting")
        daemon.flush()
        time.sleep(1.1)
        assert daemon.stats()["evictions_ttl"] == 0
        probe = daemon.http.post("/v1/cache/probe", json={"prompt": [*brief, 7, 7]}).json()
        assert (probe["cached_tokens"], probe["reason"]) == (0, "expired")
        assert cached(daemon.complete([*brief, 7, 7], 2, cache_no_store=True)) == 0
        assert miss_reasons(daemon)[-1] == "expired"
        assert cached(daemon.complete([*lasting, 7, 7], 2, cache_no_store=True)) > 150
        assert daemon.stop() == 0
    with Daemon(tiny(kind), tmp_path / "data", *NEVER_SWEPT) as daemon:
        assert cached(daemon.complete([*brief, 7, 7], 2, cache_no_store=True)) == 0
        assert cached(daemon.complete([*lasting, 7, 7], 2, cache_no_store=True)) > 150
        daemon.http.post("/admin/sweep").raise_for_status()
        assert daemon.http.get("/admin/entries").json()["total"] == 1
        assert not daemon.http.post("/admin/check").json()["broken"]


SETTINGS: dict[str, tuple[tuple[str, ...], Any]] = {
    # flags -> is the prompt a hit after 1.1 s?
    "memory alone": (("--prompt-cache-ttl", "1", "--disk-write-policy", "off"), False),
    "memory, then disk": (("--prompt-cache-ttl", "1"), True),
    "both over": (("--prompt-cache-ttl", "1", "--disk-ttl", "1"), False),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "both over" else n for n in SETTINGS])
def test_a_tiers_time_is_over_at_the_lookup(name: str, tiny: Tiny, tmp_path: Path) -> None:
    """Past a tier's time a prompt is served from the other tier or not at all, though nothing was swept."""
    flags, expected = SETTINGS[name]
    with Daemon(tiny("llama"), tmp_path / "data", *NEVER_SWEPT, *flags) as daemon:
        daemon.complete(prompt(1, 200), 2)
        daemon.flush()
        time.sleep(1.1)
        assert (cached(daemon.complete([*prompt(1, 200), 7], 2)) > 0) is expected
        assert daemon.stats()["evictions_ttl"] == 0
