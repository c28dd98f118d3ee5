"""Model-aware capacities: how many bytes of cache suit a model and a machine. Formula: prompt cache guide, "capacity"."""

import msgspec

KV_DEFAULT_BYTES = 2 << 30
SNAPSHOT_DEFAULT_BYTES = 512 << 20
REPRESENTATIVE_TOKENS = 8192
TARGET_ENTRIES = 6


class Recommendation(msgspec.Struct, frozen=True):
    """A capacity and the figures it was made from, in bytes; `ceiling_bytes` None: free memory is unknown."""

    capacity_bytes: int
    entry_bytes: int
    representative_tokens: int
    ceiling_bytes: int | None


def representative_tokens(ctx_size: int) -> int:
    """Return the length at which an entry is sized: the context, at most 8192, at least 32 tokens."""
    return REPRESENTATIVE_TOKENS if ctx_size == 0 else min(max(ctx_size, 32), REPRESENTATIVE_TOKENS)


def left_bytes(available_bytes: int, weights_bytes: int, kv_bytes: int, headroom_factor: float) -> int | None:
    """Return what the model leaves of the memory; None when the memory is unknown (0)."""
    if available_bytes <= 0:
        return None
    return max(0, available_bytes - int((weights_bytes + kv_bytes) * headroom_factor))


def recommend(entry_bytes: int, left: int | None, default_bytes: int, ctx_size: int = 0) -> Recommendation:
    """Return room for six entries, at most a quarter of what is left, but one entry if it fits into half of it."""
    tokens = representative_tokens(ctx_size)
    if left is None:
        return Recommendation(max(TARGET_ENTRIES * entry_bytes, default_bytes), entry_bytes, tokens, None)
    wanted = min(TARGET_ENTRIES * entry_bytes, left // 4)
    one = entry_bytes if entry_bytes <= left // 2 else 0
    return Recommendation(max(wanted, one, default_bytes), entry_bytes, tokens, left // 4)
