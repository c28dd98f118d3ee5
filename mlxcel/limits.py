"""From settings, model and machine to the limits that the core decides by."""

import importlib.metadata
import json
import logging
import platform
import shutil
from pathlib import Path
from typing import Any

from mlxcel.config.settings import Settings
from mlxcel.core.policy import SECOND_US, Policy
from mlxcel.families import apc_suits
from mlxcel.ports import ModelFacts
from mlxcel.service import capacity

log = logging.getLogger("mlxcel")

DISK_SHARE, DISK_MOST_BYTES = 5, 64 << 30


def read_config(path: str) -> dict[str, Any]:
    """Return the model's config.json."""
    config: dict[str, Any] = json.loads((Path(path) / "config.json").read_text())
    return config


def disk_capacity(settings: Settings) -> int:
    """Return the disk tier's capacity in bytes: as set, else the smaller of 64 GiB and a fifth of what is free or ours."""
    if settings.disk_capacity_bytes is not None:
        return settings.disk_capacity_bytes
    held = settings.data_dir / "kv" / "data.mdb"
    ours = held.stat().st_size if held.exists() else 0
    return min(DISK_MOST_BYTES, (shutil.disk_usage(settings.data_dir).free + ours) // DISK_SHARE)


def make_policy(settings: Settings, facts: ModelFacts, config: dict[str, Any], memory: dict[str, int]) -> Policy:
    """Turn settings, model and machine into the core's policy; explicit capacities are never changed."""
    apc = settings.apc_enabled and apc_suits(config)
    tokens = capacity.representative_tokens(settings.ctx_size)
    kv_bytes = facts.kv_bytes_per_token * tokens
    available = settings.memory_limit_bytes or memory["recommended_bytes"]
    left = capacity.left_bytes(available, facts.weights_bytes, kv_bytes, settings.headroom_factor)
    kv = settings.prompt_cache_capacity_bytes
    snapshots = settings.snapshot_capacity_bytes
    if kv is None:
        kv = _recommended("KV store", kv_bytes, left, capacity.KV_DEFAULT_BYTES, settings.ctx_size)
    if snapshots is None:
        entry = kv_bytes if facts.reuse == "snapshot" else 0
        snapshots = _recommended("snapshot", entry, left, capacity.SNAPSHOT_DEFAULT_BYTES, settings.ctx_size)
    block_size = settings.apc_block_size if apc or facts.reuse == "snapshot" else 1
    matched = apc and facts.reuse != "none"
    return Policy(
        enabled=settings.cache_active,
        capacity_bytes=bound_by_blocks(settings, kv, facts.kv_bytes_per_token * block_size if matched else 0),
        max_entries=settings.prompt_cache_max_entries,
        ttl_us=int(settings.prompt_cache_ttl_s * SECOND_US),
        min_prefix_tokens=settings.prompt_cache_min_prefix,
        apc_enabled=apc,
        block_size=block_size,
        snapshot_capacity_bytes=snapshots,
        snapshot_max_entries=settings.snapshot_max_entries,
        snapshot_ttl_us=int(settings.snapshot_ttl_s * SECOND_US),
        disk_capacity_bytes=disk_capacity(settings),
        disk_ttl_us=int(settings.disk_ttl_s * SECOND_US),
        write_policy=settings.disk_write_policy if settings.disk_active else "off",
        donate_cancelled=settings.donate_cancelled,
        ranking=settings.prompt_cache_ranking,
        strict_template_bucket=settings.strict_template_bucket,
        memory_cap_bytes=memory_cap(settings, facts, memory),
        low_water_percent=settings.prompt_cache_low_water_percent,
        serves_model=facts.name,
        serves_fingerprint=facts.fingerprint,
    )


def bound_by_blocks(settings: Settings, capacity_bytes: int, block_bytes: int) -> int:
    """Return the KV store's capacity under `--apc-num-blocks`. `block_bytes`: KV of one block; 0: there are no blocks here.

    The guide's flag bounds the blocks that are tracked. Here no block is tracked without its KV, so their number and the
    bytes of their KV are the same bound.
    """
    blocks = settings.apc_num_blocks
    if blocks is None:
        return capacity_bytes
    if not block_bytes:
        log.warning("--apc-num-blocks %d bounds nothing: this model's KV is not matched by blocks", blocks)
        return capacity_bytes
    bound = min(capacity_bytes, blocks * block_bytes)
    log.info("--apc-num-blocks %d: the KV store takes at most %d bytes", blocks, bound)
    return bound


def _recommended(what: str, entry_bytes: int, left: int | None, default_bytes: int, ctx_size: int) -> int:
    made = capacity.recommend(entry_bytes, left, default_bytes, ctx_size)
    if made.capacity_bytes != default_bytes:
        log.info(
            "Applied model-aware prompt-cache %s capacity default: previous_capacity_bytes=%d recommended_capacity_bytes=%d "
            "representative_entry_bytes=%d representative_tokens=%d ceiling_bytes=%s",
            what, default_bytes, made.capacity_bytes, made.entry_bytes, made.representative_tokens, made.ceiling_bytes,
        )  # fmt: skip
    return made.capacity_bytes


def memory_cap(settings: Settings, facts: ModelFacts, memory: dict[str, int]) -> int:
    """Return the bytes that all KV together may take: as set, else what the weights leave (0: no cap)."""
    if settings.memory_cap_bytes is not None:
        return settings.memory_cap_bytes
    available = settings.memory_limit_bytes or memory["recommended_bytes"]
    left = capacity.left_bytes(available, facts.weights_bytes, 0, settings.headroom_factor)
    return 0 if left is None else max(1, left)


def live_budget(settings: Settings, facts: ModelFacts, memory: dict[str, int]) -> int:
    """Return the bytes that running answers' KV may take: as set, else half of what the weights leave (0: no limit)."""
    if settings.kv_cache_budget_bytes is not None:
        return settings.kv_cache_budget_bytes
    available = settings.memory_limit_bytes or memory["recommended_bytes"]
    left = capacity.left_bytes(available, facts.weights_bytes, 0, settings.headroom_factor)
    return 0 if left is None else max(1, left // 2)


def software_versions(settings: Settings) -> dict[str, str]:
    """Return versions that a reader of the log may want to know, and the size of prefill's steps (what-if needs it)."""
    names = ("mlxcel", "mlx", "mlx-lm", "lmdb")
    found = {
        "prefill_chunk_tokens": str(settings.prefill_chunk_size),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
