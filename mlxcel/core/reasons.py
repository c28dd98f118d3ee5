"""Why reuse was refused or missed, as closed sets of names. Order and spelling are the guide's; ours follow after."""

from enum import StrEnum


class RefusalReason(StrEnum):
    """The guide's eleven reasons, in its stable order. All are exported as metric labels from the start."""

    OVERSIZED = "oversized"
    DISABLED = "disabled"
    PREFIX_TOO_SHORT = "prefix_too_short"
    MODE_MISMATCH = "mode_mismatch"
    KV_MODE_MISMATCH = "kv_mode_mismatch"
    EMPTY_SET = "empty_set"
    LAYOUT_CONSTRAINTS = "layout_constraints"
    BLOCK_BOUNDARY_FLOOR = "block_boundary_floor"
    SNAPSHOT_DIVERGED = "snapshot_diverged"
    MODEL_OWNED_STATE = "model_owned_state"
    ROPE_REGIME_MISMATCH = "rope_regime_mismatch"


class MissReason(StrEnum):
    """Why a lookup found nothing to adopt."""

    COLD_STORE = "cold_store"  # the namespace holds nothing at all
    NO_COMMON_PREFIX = "no_common_prefix"  # not even the first block is known
    TOO_SHORT = "too_short"  # a prefix is known, but it is under min_prefix
    NO_SNAPSHOT = "no_snapshot"  # tokens are known, but no captured position lies on them
    SPILL_PENDING = "spill_pending"  # evicted from memory while its write is still queued
    RESTORE_FAILED = "restore_failed"  # the disk tier could not give back what it held
    PREFILL_SOONER = "prefill_sooner"  # measured rates say that restoring would take longer


class EvictionReason(StrEnum):
    """Why a piece or entry left a tier. `capacity` is reserved by the guide and merged with `lru`."""

    LRU = "lru"
    TTL = "ttl"
    CAPACITY = "capacity"
    REPLACED = "replaced"
    RESET = "reset"
    UNREACHABLE = "unreachable"  # a piece before it is gone, so nothing can lead to it
    LOST = "lost"  # its bytes are damaged or missing
    DELETED = "deleted"  # by the operator
