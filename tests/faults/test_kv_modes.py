"""KV of one precision is never adopted by another; coming back finds the old again (B051)."""

from pathlib import Path

from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt
from tests.tinymodels import write_tiny_model

WIDE = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}  # quantised groups need 32 values
ALWAYS = ("--disk-restore", "always")


def test_each_precision_has_its_own_entries(tmp_path: Path) -> None:
    """8 bits, 4 bits, none: each starts cold and answers as a cold run does; 8 bits again is a hit from disk."""
    model = write_tiny_model("llama", tmp_path / "model", overrides=WIDE)
    asked = prompt(1, 120)
    seen = []
    for flags in (("--kv-bits", "8", "--kv-group-size", "32"), ("--kv-bits", "4", "--kv-group-size", "32"), ()) * 2:
        with Daemon(model, tmp_path / "data", *flags, *ALWAYS) as daemon:
            warm = daemon.complete(asked, 8)
            cold = daemon.complete(asked, 8, cache_prompt=False)
            assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
            seen.append(cached(warm))
            daemon.flush()
            assert daemon.stop() == 0
    assert seen == [0, 0, 0, 112, 112, 112]
