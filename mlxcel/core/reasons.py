"""Why reuse was refused or missed, as closed sets of names. Order and spelling are the guide's; ours follow after."""

from enum import StrEnum


class RefusalReason(StrEnum):
    """The guide's eleven reasons, in its stable order. All are exported as metric labels from the start.

    Each has a cause in the core. Over HTTP three have none today: media are refused before (mode_mismatch), every kept cache
    holds a state after one token (empty_set), and mlx-lm knows no RoPE of two tables (rope_regime_mismatch).

    - oversized: an entry, snapshot or restore larger than its budget, or no room beside what is leased or pinned.
    - disabled: the cache is switched off, or a budget is 0.
    - prefix_too_short: a donation under `min_prefix`; a known prompt whose last token must be computed anyway and
      which is then under `min_prefix`.
    - mode_mismatch: a prompt with media that shares only a part of a stored entry. (Dense and paged KV, the guide's
      other cause, do not exist here: KV has one form.)
    - kv_mode_mismatch: the tokens are known, but with KV of another precision.
    - empty_set: nothing was captured: a donation of a state of 0 bytes, or of no tokens.
    - layout_constraints: a snapshot ends where the prompt ends; it can't be cut one token short.
    - block_boundary_floor: long enough in tokens, under `min_prefix` in whole blocks.
    - snapshot_diverged: the session's snapshot is no prefix of the request.
    - model_owned_state: a cache class that can't be kept, so all requests of the model are served cold.
    - rope_regime_mismatch: generation crossed the RoPE boundary, or the tokens are known under the other table.
    """

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
    EXPIRED = "expired"  # past its time to live, though not yet swept
    NO_ROOM = "no_room"  # what would have to be read from disk does not fit under the memory cap


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
    DEMOTED = "demoted"  # by the operator, to disk
    PRESSURE = "pressure"  # the machine is short of memory


class OperationReason(StrEnum):
    """Why an operator's command did nothing."""

    UNKNOWN_ENTRY = "unknown_entry"
    UNKNOWN_PIN = "unknown_pin"
    PINNED = "pinned"
    IN_MEMORY = "in_memory"  # nothing to promote
    NOT_READABLE = "not_readable"  # its bytes are on their way to disk
    NO_DISK = "no_disk"  # nowhere to demote to
