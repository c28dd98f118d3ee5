"""llama.cpp's spellings, and how they live beside our own."""

from pathlib import Path

import pytest

from mlxcel.config import show
from mlxcel.config.kinds import UNLIMITED_BYTES
from mlxcel.config.load import BadSetting, load


def settings(given: dict | None = None, environ: dict | None = None):
    """Return the settings for flags and environment."""
    return load(given or {}, environ or {}).settings


@pytest.mark.parametrize(("text", "enabled"), [("1", True), ("on", True), ("256", True), ("0", False), ("off", False)])
def test_cache_reuse_variable_switches_the_cache(text: str, enabled: bool) -> None:
    """LLAMA_ARG_CACHE_REUSE is an alias of MLXCEL_PROMPT_CACHE_ENABLED, as the guide says."""
    assert settings({}, {"LLAMA_ARG_CACHE_REUSE": text}).prompt_cache_enabled is enabled


def test_own_variable_is_read_before_the_alias() -> None:
    """MLXCEL_PROMPT_CACHE_ENABLED is looked at before LLAMA_ARG_CACHE_REUSE; a flag before both."""
    both = {"MLXCEL_PROMPT_CACHE_ENABLED": "true", "LLAMA_ARG_CACHE_REUSE": "0"}
    assert settings({}, both).prompt_cache_enabled is True
    assert settings({"--prompt-cache-enabled": "false"}, both).prompt_cache_enabled is False


def test_cache_reuse_flag_takes_only_zero_and_says_nothing() -> None:
    """--cache-reuse 0 is accepted and leaves the cache on; any other count is refused by name."""
    loaded = load({"--cache-reuse": "0"}, {})
    assert loaded.settings.prompt_cache_enabled is True
    assert loaded.origins["prompt_cache_enabled"] == "default"
    with pytest.raises(BadSetting, match="--cache-reuse: '256'"):
        load({"--cache-reuse": "256"}, {})


def test_own_switch_off_beats_cache_prompt() -> None:
    """--prompt-cache-enabled=false keeps the cache off whatever --cache-prompt says, and the other way round."""
    assert not settings({"--prompt-cache-enabled": "false", "--cache-prompt": "true"}).cache_active
    assert not settings({"--no-cache-prompt": "false"}, {"MLXCEL_PROMPT_CACHE_ENABLED": "true"}).cache_active
    assert not settings({}, {"LLAMA_ARG_CACHE_PROMPT": "0"}).cache_active
    assert settings().cache_active


def test_cache_ram_is_mebibytes_and_gives_way() -> None:
    """--cache-ram counts MiB, knows -1 and 0, and gives way to --prompt-cache-capacity-bytes."""
    assert settings({"--cache-ram": "100"}).prompt_cache_capacity_bytes == 100 << 20
    assert settings({"--cache-ram": "-1"}).prompt_cache_capacity_bytes == UNLIMITED_BYTES
    assert settings({}, {"LLAMA_ARG_CACHE_RAM": "0"}).prompt_cache_capacity_bytes == 0
    own = {"--prompt-cache-capacity-bytes": "5", "--cache-ram": "100"}
    assert settings(own).prompt_cache_capacity_bytes == 5
    with pytest.raises(BadSetting, match="--cache-ram"):
        load({"--prompt-cache-capacity-bytes": "5", "--cache-ram": "-2"}, {})


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"--no-batch": "1"}, 1),
        ({"--no-cont-batching": "1"}, 1),
        ({"--cont-batching": "-1"}, 4),
        ({"--parallel": "-1"}, 4),
        ({"--parallel": "7"}, 7),
        ({"--parallel": "7", "--max-batch-size": "3"}, 3),
    ],
)
def test_batch_spellings(given: dict[str, str], rows: int) -> None:
    """The spellings for how many answers are decoded together, our own first."""
    assert settings(given).max_batch_size == rows


def test_flags_that_contradict_each_other_are_refused() -> None:
    """A switch given both ways names both flags."""
    with pytest.raises(BadSetting, match="--prompt-cache-enabled and --no-prompt-cache"):
        load({"--prompt-cache-enabled": "true", "--no-prompt-cache": "false"}, {})


def test_switch_variables_need_exactly_one() -> None:
    """The three switches of the environment act on "1" and on nothing else."""
    for text in ("true", "yes", "0", "2"):
        chosen = settings({}, {"MLXCEL_DISABLE_CACHE_WARMUP": text, "MLXCEL_APC_TRACE": text})
        assert chosen.cache_warmup is True
        assert chosen.apc_trace is False


def test_api_keys_come_from_flags_and_file(tmp_path: Path) -> None:
    """Keys of a file join those of flags; comments and empty lines don't count; no key is ever shown."""
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  secret-one \nsecret-two\n")
    loaded = load({"--api-key": ["secret-zero"], "--api-key-file": str(file)}, {})
    assert loaded.settings.api_keys == ("secret-zero", "secret-one", "secret-two")
    assert "secret-" not in str(show.rows(loaded)) + str(show.as_plain(loaded))


def test_empty_key_file_is_refused(tmp_path: Path) -> None:
    """A key file without a key is an error: it would leave the server open by mistake."""
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(BadSetting, match="holds no key"):
        load({"--api-key-file": str(file)}, {})
