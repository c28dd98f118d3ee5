"""What the core can be asked to decide. Imperative, complete: time, sizes and measured rates arrive in the fields.

Tags end in the format version of that command. Fields are only ever appended, with defaults.
"""

import msgspec

from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """Base. `at_us`: wall time in microseconds on the single writer's monotone clock. Where a command has `live_bytes`: live
    KV, pending writes and restores in flight in bytes; with entries and snapshots they must fit under the memory cap."""

    at_us: int


class AdoptPolicy(Command, frozen=True, kw_only=True, tag="adopt_policy.1"):
    """Take these settings from now on. `software` names versions, for the reader of the log."""

    policy: Policy
    software: dict[str, str] = {}


class OpenNamespace(Command, frozen=True, kw_only=True, tag="open_namespace.1"):
    """Make a namespace known. `reuse`: "prefix" (any block) or "snapshot" (captured positions only)."""

    key: NamespaceKey
    model_id: str
    kv_bytes_per_token: int
    reuse: str
    fingerprint_parts: dict[str, str] = {}


class TokenRef(msgspec.Struct, frozen=True, array_like=True):
    """Tokens as the log keeps them: those on the path to `node` (the first `length` of them), then `suffix`."""

    node: int
    length: int
    suffix: bytes


class AdoptPrefix(Command, frozen=True, kw_only=True, tag="adopt_prefix.1"):
    """A request arrives: say how much of its prompt need not be computed, and take a lease on it."""

    request: str
    namespace: int
    template_sig: str
    session_key: str
    tokens: bytes | TokenRef
    store: bool = True
    ttl_us: int = -1
    prefill_tokens_per_s: float = 0.0
    restore_bytes_per_s: float = 0.0
    again: bool = False  # asked a second time for the same request (after a failed restore)
    read: bool = True
    live_bytes: int = 0
    background: bool = False  # nobody waits for it: it counts as no look-up, no hit and no miss


class ServeCold(Command, frozen=True, kw_only=True, tag="serve_cold.1"):
    """A request that may not use the cache. Its tokens are not given, so none reach the log."""

    request: str
    reason: str
    prompt_tokens: int
    detail: str = ""


class SealPrefix(Command, frozen=True, kw_only=True, tag="seal_prefix.1"):
    """Prefill has filled the live cache up to `length` tokens: keep what is new as whole segments."""

    request: str
    length: int
    live_bytes: int = 0


class CaptureSnapshot(Command, frozen=True, kw_only=True, tag="capture_snapshot.1"):
    """Prefill stands at a planned position of a model whose state can't be cut: keep it. `nbytes`: the state's size.

    `cuttable`: the state of any position before this one can be cut out of it (no window has wrapped yet).
    """

    request: str
    length: int
    nbytes: int
    origin: str
    awaited: list[int] = []  # snapshots that waiting requests would adopt
    live_bytes: int = 0
    cuttable: bool = False


class DonatePrefix(Command, frozen=True, kw_only=True, tag="donate_prefix.1"):
    """A request ended in health: its live cache covers prompt + generated, `length` tokens. Ends the request.

    `generated`: tokens after the prompt whose KV is in the cache. `state_nbytes`: size of the state that can't be cut.
    `regime_crossed`: generation went over the RoPE boundary, so the cache holds rows of both tables.
    """

    request: str
    generated: bytes
    length: int
    state_nbytes: int = 0
    completion_tokens: int = 0
    awaited: list[int] = []  # snapshots that waiting requests would adopt
    live_bytes: int = 0
    regime_crossed: bool = False
    cuttable: bool = False  # as in CaptureSnapshot


class EndRequest(Command, frozen=True, kw_only=True, tag="end_request.1"):
    """A request ended without a donation. `outcome`: "served_cold", "cancelled", "failed", "not_stored"."""

    request: str
    outcome: str
    detail: str = ""


class SpillResult(msgspec.Struct, frozen=True, array_like=True):
    """One piece's fate in the disk tier: `stored_bytes` when committed, else `error`."""

    blob: int
    stored_bytes: int
    error: str = ""


class RecordSpills(Command, frozen=True, kw_only=True, tag="record_spills.1"):
    """The disk tier committed or failed these writes."""

    results: list[SpillResult]


class RecordRestore(Command, frozen=True, kw_only=True, tag="record_restore.1"):
    """The pieces a request waited for are in memory; or `error` says why not, and `lost` names the blob that is gone (0: none,
    the tier could not be read just now)."""

    request: str
    lost: int = 0
    error: str = ""
    live_bytes: int = 0


class SweepExpired(Command, frozen=True, kw_only=True, tag="sweep_expired.1"):
    """Drop what is past its time to live, at most `limit` victims."""

    limit: int = 64


class ResetCache(Command, frozen=True, kw_only=True, tag="reset_cache.1"):
    """Forget every entry that no running request uses, pins too if `include_pins`. `caller` names who asked."""

    caller: str = ""
    include_pins: bool = False


class PinPrefix(Command, frozen=True, kw_only=True, tag="pin_prefix.1"):
    """Keep the entry's whole path from eviction, age and reset, under `name`. A name that is in use moves over."""

    name: str
    entry: int
    caller: str = ""


class UnpinPrefix(Command, frozen=True, kw_only=True, tag="unpin_prefix.1"):
    """Let the entry age again."""

    name: str
    caller: str = ""


class DeleteEntries(Command, frozen=True, kw_only=True, tag="delete_entries.1"):
    """End these entries in every tier. Pinned ones are refused."""

    entries: list[int]
    caller: str = ""


class PromoteEntry(Command, frozen=True, kw_only=True, tag="promote_entry.1"):
    """Read the entry into memory. `request` names the errand: the restore ends with RecordRestore under that name."""

    request: str
    entry: int
    caller: str = ""


class DemoteEntry(Command, frozen=True, kw_only=True, tag="demote_entry.1"):
    """Let the entry's own pieces leave memory where disk holds them; have the others written."""

    entry: int
    caller: str = ""


class ShrinkMemory(Command, frozen=True, kw_only=True, tag="shrink_memory.1"):
    """The machine is short of memory: bring entries and snapshots down to `target_bytes`, at most `limit` victims."""

    target_bytes: int
    limit: int = 256


class Recover(Command, frozen=True, kw_only=True, tag="recover.1"):
    """The process starts: memory is empty, no request runs; `missing`/`found` are how the disk differs from the state."""

    missing: list[int] = []
    found: list[SpillResult] = []
    orphans: int = 0
    log_cut_bytes: int = 0
    detail: str = ""


AnyCommand = (
    AdoptPolicy
    | OpenNamespace
    | AdoptPrefix
    | ServeCold
    | SealPrefix
    | CaptureSnapshot
    | DonatePrefix
    | EndRequest
    | RecordSpills
    | RecordRestore
    | SweepExpired
    | ResetCache
    | PinPrefix
    | UnpinPrefix
    | DeleteEntries
    | PromoteEntry
    | DemoteEntry
    | ShrinkMemory
    | Recover
)
