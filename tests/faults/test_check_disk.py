"""The scheduled look at the disk tier: damage that nobody has asked for yet is found, named and mended or let go of."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.lmdb_tier.environment import DATA_FILE
from storage.lmdb_tier.tier import LmdbTier
from tests.e2e.daemon import Daemon
from tests.faults.support import ALWAYS, Filled, metric, said


def flip_every_other(data: Path) -> int:
    """Flip a byte in every second stored piece, in place; returns how many."""
    tier = LmdbTier.open(data / "kv", read_only=True)
    try:
        pieces = [bytes(tier.read_encoded(key)) for key in sorted(tier.inventory())]
    finally:
        tier.close()
    file = data / "kv" / DATA_FILE
    raw = file.read_bytes()
    fd = os.open(file, os.O_RDWR)
    try:
        for piece in pieces[::2]:
            at = raw.index(piece) + len(piece) // 2
            os.pwrite(fd, bytes([raw[at] ^ 1]), at)
    finally:
        os.close(fd)
    return len(pieces[::2])


def check(daemon: Daemon) -> dict[str, Any]:
    """Run the check now; returns its result."""
    job = daemon.http.post("/admin/jobs/run", json={"name": "check_disk"}).json()
    assert job["last"]["error"] is None, job
    result: dict[str, Any] = job["last"]["result"]
    return result


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def stored(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Filled:
    """A data directory of a model that is cut by tokens, and of one that is kept by snapshots."""
    return Filled(tiny(request.param), tmp_path_factory.mktemp("checked") / "data", 5, 150)


def test_damage_is_found_before_a_request_meets_it(stored: Filled, tmp_path: Path) -> None:
    """What only disk has is dropped like a piece that failed to be read: no request waits for it, and answers are right."""
    data = stored.copy(tmp_path / "data")
    with Daemon(stored.model, data, *ALWAYS) as daemon:
        first = check(daemon)
        assert first["pieces"] >= 5
        flipped = flip_every_other(data)
        found = check(daemon)
        assert (found["rewritten"], found["left"]) == (0, 0)
        dropped = found["dropped"]
        assert dropped + found["gone"] == flipped  # what lies below a dropped piece goes with it
        stats = daemon.stats()
        assert stats["disk_damage_found"] == stats["restore_failures"] == dropped > 0
        assert stats["disk_pieces_checked"] == first["pieces"] + found["pieces"]
        assert (stats["lookups"], stats["leases"], stats["requests_running"]) == (0, 0, 0)
        assert said(daemon).count("a check found damage") == dropped
        assert metric(daemon, "mlxcel_prompt_cache_disk_pieces_checked_total") == stats["disk_pieces_checked"]
        assert f'faults_total{{kind="check_found_damage"}} {dropped}.0' in daemon.http.get("/metrics").text
        assert stored.hits_and_rightness(daemon) < len(stored.prompts)
        assert daemon.stats()["restore_failures"] == dropped, "no request met the damage"
        daemon.flush()
        assert daemon.http.post("/admin/check").json() == {"broken": []}
        assert stored.hits_and_rightness(daemon) == len(stored.prompts)
        assert daemon.stop() == 0
    with Daemon(stored.model, data, *ALWAYS) as daemon:
        assert stored.hits_and_rightness(daemon) == len(stored.prompts)
        assert daemon.stats()["restore_failures"] == 0


def test_what_memory_holds_is_written_again(filled: Filled, tmp_path: Path) -> None:
    """Damage on disk under a piece that memory holds too costs nothing: after the next start every prompt hits."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        daemon.flush()
        flipped = flip_every_other(data)
        found = check(daemon)
        assert found["left"] == 0
        assert found["rewritten"] >= flipped // 2
        assert found["rewritten"] + found["dropped"] + found["gone"] == flipped  # ends of answers stayed on disk alone
        daemon.flush()
        assert sum(check(daemon)[fate] for fate in ("rewritten", "dropped", "left", "gone")) == 0
        assert daemon.stop() == 0
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
        assert daemon.stats()["restore_failures"] == 0
