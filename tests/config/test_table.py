"""Each row of the table of settings: its default, its variable, its flag, what wins, and what a bad value says."""

import re
from pathlib import Path

import pytest

from mlxcel.config import show
from mlxcel.config.kinds import BYTES, SECONDS, BadValue
from mlxcel.config.load import BadSetting, load, table
from mlxcel.config.settings import Settings, default_data_dir

# name: (default, text on the command line, its value, text in the environment, its value, text that is refused or None)
AUTO = None
ROWS = {
    "model": (None, "a/b", "a/b", "c", "c", "  "),
    "ctx_size": (0, "4096", 4096, "8192", 8192, "-1"),
    "lora": ("", "a:2", "a:2", "b", "b", ""),
    "kv_bits": (AUTO, "8", 8, "4", 4, "3"),
    "kv_group_size": (64, "32", 32, "128", 128, "48"),
    "quantized_kv_start": (0, "0", 0, "0", 0, "5000"),
    "fast_blas": (True, "false", False, "0", False, "maybe"),
    "host": ("127.0.0.1", "0.0.0.0", "0.0.0.0", "::1", "::1", " "),
    "port": (8080, "0", 0, "9000", 9000, "65536"),
    "data_dir": (default_data_dir(), "/x", Path("/x"), "/y", Path("/y"), " "),
    "api_keys": ((), ["a", "b"], ("a", "b"), "c, d", ("c", "d"), " "),
    "admin_key": ("", "a", "a", "b", "b", None),
    "admin_tokens": (False, "true", True, "1", True, "maybe"),
    "allowed_hosts": ((), ["a", "b"], ("a", "b"), "c, d", ("c", "d"), " "),
    "api_key_file": (None, None, None, None, None, "/nowhere/at/all"),
    "max_queue_depth": (32, "1", 1, "64", 64, "0"),
    "timeout_s": (3600.0, "0", 0.0, "30m", 1800.0, "-1"),
    "decode_timeout_s": (600.0, "0", 0.0, "30m", 1800.0, "-1"),
    "metrics": (False, "true", True, "yes", True, "2"),
    "predict_tokens": (1024, "-1", -1, "7", 7, "0"),
    "prefill_chunk_size": (512, "256", 256, "1024", 1024, "8"),
    "max_batch_size": (4, "1", 1, "8", 8, "0"),
    "kv_cache_budget_bytes": (AUTO, "auto", None, "1g", 1 << 30, "lots"),
    "memory_limit_bytes": (AUTO, None, None, "8GiB", 8 << 30, "-5"),
    "headroom_factor": (1.2, None, None, "1.5", 1.5, "0.5"),
    "prompt_cache_enabled": (True, "false", False, "off", False, "falsch"),
    "cache_prompt": (True, "false", False, "no", False, "2"),
    "prompt_cache_capacity_bytes": (AUTO, "8589934592", 8589934592, "0", 0, "1.5"),
    "memory_cap_bytes": (AUTO, "16G", 16 << 30, "0", 0, "-1"),
    "prompt_cache_max_entries": (1024, "4096", 4096, "1", 1, "0"),
    "prompt_cache_ttl_s": (3600.0, "1800", 1800.0, "30m", 1800.0, "-1"),
    "prompt_cache_min_prefix": (32, "64", 64, "16", 16, "x"),
    "prompt_cache_ranking": ("leaf-lru", "entry-lru", "entry-lru", "leaf-lru", "leaf-lru", "lru"),
    "prompt_cache_low_water_percent": (100, "80", 80, "50", 50, "0"),
    "pin_prefix": ((), ["/a", "/b"], (Path("/a"), Path("/b")), "/c", (Path("/c"),), " "),
    "strict_template_bucket": (False, "true", True, "1", True, ""),
    "donate_cancelled": (True, "false", False, "off", False, "never"),
    "sweep_interval_s": (60.0, "5", 5.0, "0.5", 0.5, "0"),
    "snapshot_capacity_bytes": (AUTO, "1048576", 1048576, "1G", 1 << 30, "-1"),
    "snapshot_max_entries": (4096, "10", 10, "20", 20, "0"),
    "snapshot_ttl_s": (7200.0, "60", 60.0, "2h", 7200.0, "soon"),
    "boundary_snapshot": (True, None, None, "1", False, None),
    "cache_warmup": (True, None, None, "1", False, None),
    "apc_enabled": (True, "false", False, "0", False, "x"),
    "apc_block_size": (16, "32", 32, "64", 64, "0"),
    "apc_num_blocks": (AUTO, "100", 100, "200", 200, "0"),
    "apc_hash": ("sha256", "blake3", "blake3", "blake3", "blake3", "md5"),
    "disk_capacity_bytes": (AUTO, "1T", 1 << 40, "0", 0, "1P"),
    "disk_ttl_s": (604800.0, "1d", 86400.0, "60", 60.0, "inf"),
    "disk_write_policy": ("behind", "off", "off", "on-evict", "on-evict", "sometimes"),
    "disk_restore": ("measured", "always", "always", "measured", "measured", "sometimes"),
    "log_level": ("info", "debug", "debug", "error", "error", "INFO "),
    "apc_trace": (False, None, None, "1", True, None),
}


def test_every_row_is_listed() -> None:
    """The table of this test and the table of settings name the same settings."""
    assert set(ROWS) == set(table()) == set(Settings.__struct_fields__)


@pytest.mark.parametrize("name", ROWS)
def test_default(name: str) -> None:
    """With nothing given, a setting has its default and says so."""
    loaded = load({}, {})
    assert getattr(loaded.settings, name) == ROWS[name][0]
    assert loaded.origins[name] == "default"


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[3] is not None])
def test_environment_wins_over_default(name: str) -> None:
    """A variable sets its setting and is named as the origin; a variable that is empty counts as not set."""
    variable = table()[name].env[0].name
    loaded = load({}, {variable: ROWS[name][3]})
    assert getattr(loaded.settings, name) == ROWS[name][4]
    assert loaded.origins[name] == variable
    assert load({}, {variable: ""}).origins[name] == "default"


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1] is not None])
def test_flag_wins_over_environment(name: str) -> None:
    """A flag wins over its variable, even over one that holds nonsense, and is named as the origin."""
    row = table()[name]
    loaded = load({row.flags[0].name: ROWS[name][1]}, {row.env[0].name: "nonsense that nothing accepts\0"})
    assert getattr(loaded.settings, name) == ROWS[name][2]
    assert loaded.origins[name] == row.flags[0].name


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[5]])
def test_bad_value_names_source_value_and_what_is_accepted(name: str) -> None:
    """A bad value is refused with the flag or variable, the value, and what it takes, on both ways in."""
    row, bad = table()[name], ROWS[name][5]
    sources = [({row.env[0].name: bad}, row.env[0].name, {})] + [
        ({}, flag.name, {flag.name: [bad] if row.repeat else bad}) for flag in row.flags[:1]
    ]
    for environ, source, given in sources:
        if row.repeat and environ:
            continue  # a list in a variable has no bad parts: empty ones are dropped
        with pytest.raises(BadSetting) as caught:
            load(given, environ)
        message = str(caught.value)
        assert source in message
        assert "takes" in message
        assert row.secret or bad in message


def test_settings_of_few_numbers_name_them() -> None:
    """What the KV settings take is listed in the refusal, not given as a span that holds wrong numbers."""
    for flag, bad, words in [
        ("--kv-bits", "3", "one of 2, 4, 8"),
        ("--kv-group-size", "7", "one of 32, 64, 128"),
        ("--quantized-kv-start", "5", "only 0"),
    ]:
        with pytest.raises(BadSetting) as caught:
            load({flag: bad}, {})
        assert str(caught.value) == f"{flag}: {bad!r} is not accepted; it takes {words}"


def test_no_flag_or_variable_stands_for_two_settings() -> None:
    """Each flag and each variable belongs to one setting."""
    flags = [word for row in table().values() for flag in row.flags for word in flag.names]
    variables = [env.name for row in table().values() for env in row.env]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))


GUIDE = """
--prompt-cache-enabled MLXCEL_PROMPT_CACHE_ENABLED true
--prompt-cache-capacity-bytes MLXCEL_PROMPT_CACHE_CAPACITY_BYTES 2147483648
--prompt-cache-max-entries MLXCEL_PROMPT_CACHE_MAX_ENTRIES 1024
--prompt-cache-ttl MLXCEL_PROMPT_CACHE_TTL 3600
--prompt-cache-min-prefix MLXCEL_PROMPT_CACHE_MIN_PREFIX 32
--apc-enabled APC_ENABLED true
--apc-block-size APC_BLOCK_SIZE 16
--apc-num-blocks APC_NUM_BLOCKS
--apc-hash APC_HASH sha256
--prompt-cache-snapshot-capacity-bytes MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES 536870912
--prompt-cache-snapshot-max-entries MLXCEL_PROMPT_CACHE_SNAPSHOT_MAX_ENTRIES 4096
--prompt-cache-snapshot-ttl MLXCEL_PROMPT_CACHE_SNAPSHOT_TTL 7200
"""


@pytest.mark.parametrize("line", GUIDE.strip().splitlines())
def test_guide_row(line: str) -> None:
    """Each row of the guide's table has its flag, its variable and its default."""
    flag, variable, *default = line.split(" ")
    name, row = next((name, row) for name, row in table().items() if row.flags and row.flags[0].name == flag)
    assert row.env[0].name == variable
    assert not default or default[0] in show.default_words(name, row)


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("1k", 1024), ("2 GiB", 2 << 30), ("3MB", 3 << 20), ("1t", 1 << 40)]
)
def test_bytes(text: str, value: int) -> None:
    """Bytes are plain or carry a power of 1024."""
    assert BYTES.parse(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1e3", "0x10", "1.5G", "99999999T", "\uff11\uff12", "1_000"])
def test_bytes_refused(text: str) -> None:
    """What isn't clearly a number of bytes is refused, rather than guessed at."""
    with pytest.raises(BadValue):
        BYTES.parse(text)


def test_seconds_with_units() -> None:
    """Seconds may carry a unit."""
    assert [SECONDS.parse(text) for text in ("90", "1.5m", "2h", "7d")] == [90.0, 90.0, 7200.0, 604800.0]


def test_help_text_of_every_row_is_a_sentence() -> None:
    """Each row has words for the help that begin with a capital and leave the full stop to the formatter."""
    for name, row in table().items():
        assert re.match(r"[A-Z]", row.help), name
        assert not row.help.endswith("."), name


def test_readme_holds_the_table() -> None:
    """The README's table of settings is the one that the code has (`python -m mlxcel.config.show` prints it)."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    assert f"<!-- settings -->\n{show.markdown()}\n<!-- /settings -->" in readme
