"""Model-aware capacities against the worked numbers of the facts sheet, section 6."""

import pytest

from mlxcel.service.capacity import (
    KV_DEFAULT_BYTES,
    SNAPSHOT_DEFAULT_BYTES,
    left_bytes,
    recommend,
    representative_tokens,
)

GIB = 1 << 30
QWEN3_NEXT = 536_870_912 + 78_446_592
GEMMA4_31B = 901_120 * 8192
LLAMA_8B = 131_072 * 8192


@pytest.mark.parametrize(
    ("entry", "left", "default", "expected"),
    [
        (QWEN3_NEXT, 64 * GIB, SNAPSHOT_DEFAULT_BYTES, 3_691_905_024),
        (QWEN3_NEXT, 8 * GIB, SNAPSHOT_DEFAULT_BYTES, 2 * GIB),
        (GEMMA4_31B, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 25 * GIB),
        (GEMMA4_31B, 24 * GIB, SNAPSHOT_DEFAULT_BYTES, GEMMA4_31B),
        (GEMMA4_31B, 12 * GIB, SNAPSHOT_DEFAULT_BYTES, 3 * GIB),
        (GEMMA4_31B, 0, SNAPSHOT_DEFAULT_BYTES, 512 << 20),
        (LLAMA_8B, 100 * GIB, KV_DEFAULT_BYTES, 6 * GIB),
        (LLAMA_8B, 16 * GIB, KV_DEFAULT_BYTES, 4 * GIB),
        (LLAMA_8B, 6 * GIB, KV_DEFAULT_BYTES, 2 * GIB),
        (2 * 34 * 4 * 256 * 2 * 8192, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 6 * 2 * 34 * 4 * 256 * 2 * 8192),
        (2 * 48 * 8 * 128 * 2 * 8192, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 6 * 192 * 1024 * 8192),
        (2 * (40 * 8 * 256 + 8 * 512) * 2 * 8192, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 6 * 344_064 * 8192),
        (2 * 52 * 2 * 128 * 2 * 8192, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 6 * 53_248 * 8192),
        (2 * 32 * 4 * 128 * 2 * 8192, 100 * GIB, SNAPSHOT_DEFAULT_BYTES, 6 * 65_536 * 8192),
    ],
)
def test_worked_numbers(entry: int, left: int, default: int, expected: int) -> None:
    """Six entries, at most a quarter of what is left, one entry if it fits into half, never under the default."""
    assert recommend(entry, left, default).capacity_bytes == expected


def test_gemma_entry_is_what_the_sheet_says() -> None:
    """Gemma 4 31B: 50 sliding layers of 16x256 and 10 global ones of 4x512 are 901,120 bytes a token."""
    assert 2 * (50 * 16 * 256 + 10 * 4 * 512) * 2 == 901_120
    assert GEMMA4_31B == 7_381_975_040


@pytest.mark.parametrize(("ctx", "tokens"), [(0, 8192), (1, 32), (32, 32), (4096, 4096), (131072, 8192)])
def test_representative_length(ctx: int, tokens: int) -> None:
    """No context size means 8192 tokens, else it is clamped to 32 ... 8192."""
    assert representative_tokens(ctx) == tokens


def test_unknown_memory_sets_no_ceiling() -> None:
    """Where the memory is unknown six entries are recommended, at least the default."""
    assert left_bytes(0, 10, 10, 1.2) is None
    known = recommend(GIB, None, KV_DEFAULT_BYTES)
    assert (known.capacity_bytes, known.ceiling_bytes) == (6 * GIB, None)
    assert recommend(1, None, KV_DEFAULT_BYTES).capacity_bytes == KV_DEFAULT_BYTES


def test_exhausted_memory_leaves_nothing() -> None:
    """A model that fills the machine leaves 0 bytes, not a negative number."""
    assert left_bytes(GIB, GIB, GIB, 1.2) == 0
    assert left_bytes(10 * GIB, GIB, GIB, 1.5) == 7 * GIB
