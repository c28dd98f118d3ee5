"""From settings to the core's limits: no flag is taken and then ignored."""

import logging
from pathlib import Path

import pytest

from mlxcel.config.settings import Settings
from mlxcel.limits import bound_by_blocks, make_policy
from mlxcel.ports import ModelFacts
from tests.e2e.daemon import Daemon
from tests.e2e.test_road import prompt
from tests.tinymodels import write_tiny_model

BLOCKS = 40


@pytest.mark.parametrize(
    ("blocks", "block_bytes", "capacity", "level", "words"),
    [
        (None, 64, 1000, None, ""),
        (10, 64, 640, logging.INFO, "--apc-num-blocks 10: the KV store takes at most 640 bytes"),
        (100, 64, 1000, logging.INFO, "--apc-num-blocks 100: the KV store takes at most 1000 bytes"),
        (10, 0, 1000, logging.WARNING, "--apc-num-blocks 10 bounds nothing"),
    ],
)
def test_a_number_of_blocks_bounds_the_capacity(
    blocks: int | None, block_bytes: int, capacity: int, level: int | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The KV of so many blocks is the bound, said at start; where there are no blocks, a warning says that too."""
    with caplog.at_level(logging.INFO, "mlxcel"):
        assert bound_by_blocks(Settings(apc_num_blocks=blocks), 1000, block_bytes) == capacity
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
    assert words in caplog.text


FACTS = ModelFacts(
    name="m", path="", model_type="llama", fingerprint="f", fingerprint_parts={}, context_tokens=100, vocab_size=9,
    eos_token_ids=(1,), kv_bytes_per_token=100, kv_mode="fp", reuse="prefix", reuse_refusal="", lane="batched",
    lane_reason="", layers=(), dtype="float32", weights_bytes=1000,
)  # fmt: skip


def test_hybrids_have_no_blocks_to_bound(caplog: pytest.LogCaptureFixture) -> None:
    """A recurrent hybrid's capacity is as it would be without the flag, and the start says so."""
    settings = Settings(apc_num_blocks=5, prompt_cache_capacity_bytes=10**6)
    memory = {"recommended_bytes": 1 << 30}
    dense, hybrid = (make_policy(settings, FACTS, {"model_type": kind}, memory) for kind in ("llama", "mamba2"))
    assert (dense.capacity_bytes, hybrid.capacity_bytes) == (5 * 16 * 100, 10**6)
    assert [r.levelname for r in caplog.records if "apc-num-blocks" in r.getMessage()] == ["WARNING"]


def test_blocks_ranking_and_low_water_hold_in_a_daemon(tmp_path: Path) -> None:
    """No more than so many blocks are ever in memory; a full budget falls to its mark; the log's policy has the ranking."""
    flags = ("--apc-num-blocks", str(BLOCKS), "--prompt-cache-low-water", "50", "--prompt-cache-ranking", "entry-lru")
    with Daemon(write_tiny_model("llama", tmp_path / "model"), tmp_path / "data", *flags) as daemon:
        policy = daemon.state()["policy"]
        assert (policy["ranking"], policy["low_water_percent"]) == ("entry-lru", 50)
        seen = []
        for seed in range(6):
            daemon.complete(prompt(seed, 200), 2)
            stats = daemon.stats()
            assert stats["bytes"] <= stats["capacity_bytes"] == policy["capacity_bytes"]
            seen.append(stats["unique_block_hashes"])
        assert max(seen) <= BLOCKS
        assert seen[3] <= BLOCKS // 2 < seen[2], "the fourth prompt's 12 blocks do not fit beside 36"
        assert stats["evictions_lru"] >= 3
        assert "--apc-num-blocks 40: the KV store takes at most" in daemon.log_path.read_text()
