"""What was decided. Past tense. `evolve` needs nothing but these and the state.

Tags end in the format version of that event. Fields are only ever appended, with defaults.
"""

from mlxcel.core.event import Event as Event
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.operator_events import CacheReset as CacheReset
from mlxcel.core.operator_events import EntriesDeleted as EntriesDeleted
from mlxcel.core.operator_events import EntryDemoted as EntryDemoted
from mlxcel.core.operator_events import MemoryShrunk as MemoryShrunk
from mlxcel.core.operator_events import OperationRefused as OperationRefused
from mlxcel.core.operator_events import PrefixPinned as PrefixPinned
from mlxcel.core.operator_events import PrefixUnpinned as PrefixUnpinned
from mlxcel.core.operator_events import PromotionStarted as PromotionStarted
from mlxcel.core.operator_events import Recovered as Recovered
from mlxcel.core.operator_events import SweepDone as SweepDone
from mlxcel.core.policy import Policy


class PolicyAdopted(Event, frozen=True, tag="policy_adopted.1"):
    """These settings hold, decided by logic of this version."""

    policy: Policy
    logic_version: int
    software: dict[str, str]


class NamespaceOpened(Event, frozen=True, tag="namespace_opened.1"):
    """KV under this key has the number `namespace`; `root` is its first node. `changed`: fingerprint parts that differ
    from the newest namespace of the same model name (why the start is cold)."""

    namespace: int
    root: int
    key: NamespaceKey
    model_id: str
    kv_bytes_per_token: int
    reuse: str
    fingerprint_parts: dict[str, str]
    changed: list[str]


class NamespaceClosed(Event, frozen=True, tag="namespace_closed.1"):
    """A namespace that holds nothing any more was forgotten; should it be needed again, it gets a new number."""

    namespace: int


class RequestArrived(Event, frozen=True, tag="request_arrived.1"):
    """A request and its prompt tokens are known. (The log keeps the tokens in the command only.)"""

    request: str
    namespace: int
    template_sig: str
    session_key: str
    tokens: bytes
    store: bool
    ttl_us: int
    background: bool = False


class PrefixAdopted(Event, frozen=True, tag="prefix_adopted.1"):
    """The first `length` tokens come from the cache. `node`: deepest node used, leased until the request ends; a snapshot
    that ends after `length` is cut there.

    `source`: "memory", "disk", "snapshot". `restore`: blobs to be read first. `entry`: the entry credited (0: none).
    """

    request: str
    node: int
    length: int
    source: str
    restore: list[int]
    entry: int
    same_session: bool


class PrefixMissed(Event, frozen=True, tag="prefix_missed.1"):
    """Nothing is adopted. `known_tokens`: how far the tokens were known."""

    request: str
    reason: str
    known_tokens: int


class ReuseRefused(Event, frozen=True, tag="reuse_refused.1"):
    """A refusal with one of the guide's reasons. `stage`: "adopt" or "donate"."""

    request: str
    stage: str
    reason: str
    context_tokens: int
    entry_tokens: int = 0
    detail: str = ""


class RequestServedCold(Event, frozen=True, tag="request_served_cold.1"):
    """A request went past the cache by its own wish or for want of a reusable layout."""

    request: str
    reason: str
    prompt_tokens: int


class TokensGenerated(Event, frozen=True, tag="tokens_generated.1"):
    """The answer's tokens now follow the request's prompt. (The log keeps them in the command only.)"""

    request: str
    tokens: bytes


class PieceSplit(Event, frozen=True, tag="piece_split.1"):
    """A second sequence leaves `node` after `tokens` tokens: a new node `head` holds the shared part. No bytes move."""

    node: int
    head: int
    tokens: int


class PieceSealed(Event, frozen=True, tag="piece_sealed.1"):
    """Rows [start, start + tokens) of the request's cache are kept as blob `blob` under `key`; `spill`: write to disk too."""

    request: str
    node: int
    parent: int
    blob: int
    key: bytes
    start: int
    tokens: int
    nbytes: int
    spill: bool


class SnapshotTaken(Event, frozen=True, tag="snapshot_taken.1"):
    """The whole state at `length` tokens is kept at `node` below `parent`; the last `tail_tokens` are beyond the parent.
    `self_evictions`: how many snapshots of the same session had to go for it. `answer_tokens`: how many of the last
    tokens are the answer. `cuttable`: the state of any position before its end can be cut out of it."""

    request: str
    node: int
    parent: int
    blob: int
    key: bytes
    length: int
    tail_tokens: int
    nbytes: int
    origin: str
    session_key: str
    spill: bool
    self_evictions: int = 0
    answer_tokens: int = 0
    cuttable: bool = False


class SnapshotSuperseded(Event, frozen=True, tag="snapshot_superseded.1"):
    """A longer snapshot of the same session and origin (node `by`) replaced this one; its blob leaves every tier."""

    node: int
    by: int
    freed_blob: int


class PrefixSealed(Event, frozen=True, tag="prefix_sealed.1"):
    """The request's kept prefix now ends at `node` (`length` tokens): its lease moves there and the path is most recent."""

    request: str
    node: int
    length: int


class EntryDonated(Event, frozen=True, tag="entry_donated.1"):
    """An entry of `length` tokens is live, anchored at `node`. `replaced`: the entry of equal digest it takes over from."""

    request: str
    entry: int
    digest: bytes
    node: int
    length: int
    replaced: int
    origin: str


class RequestEnded(Event, frozen=True, tag="request_ended.1"):
    """The request is over and its lease released."""

    request: str
    outcome: str
    detail: str


class PieceEvicted(Event, frozen=True, tag="piece_evicted.1"):
    """`node` left `tier` ("memory" or "disk"). `freed_blob`: the blob whose last holder in that tier it was (0: none)."""

    node: int
    tier: str
    reason: str
    freed_blob: int
    freed_bytes: int


class EntryEvicted(Event, frozen=True, tag="entry_evicted.1"):
    """The entry is no more. `tier` says where it lived at last."""

    entry: int
    reason: str
    tier: str


class SpillQueued(Event, frozen=True, tag="spill_queued.1"):
    """A piece that leaves memory is to be written to disk first (write policy "on-evict")."""

    blob: int


class PieceSpilled(Event, frozen=True, tag="piece_spilled.1"):
    """The disk tier holds the blob."""

    blob: int
    stored_bytes: int


class SpillFailed(Event, frozen=True, tag="spill_failed.1"):
    """The disk tier does not hold the blob, and won't."""

    blob: int
    error: str


class PieceRestored(Event, frozen=True, tag="piece_restored.1"):
    """A blob read from disk; `nodes` are resident in memory again (empty: it served one request and was let go)."""

    blob: int
    nodes: list[int]


class RestoreFailed(Event, frozen=True, tag="restore_failed.1"):
    """The request gets none of what it waited for. `blob` is the piece that could not be read."""

    request: str
    blob: int
    error: str


class PrefixRestored(Event, frozen=True, tag="prefix_restored.1"):
    """Everything the request waited for is in memory: its adoption counts as a hit now."""

    request: str


AnyEvent = (
    PolicyAdopted
    | NamespaceOpened
    | NamespaceClosed
    | RequestArrived
    | PrefixAdopted
    | PrefixMissed
    | ReuseRefused
    | RequestServedCold
    | TokensGenerated
    | PieceSplit
    | PieceSealed
    | SnapshotTaken
    | SnapshotSuperseded
    | PrefixSealed
    | EntryDonated
    | RequestEnded
    | PieceEvicted
    | EntryEvicted
    | SpillQueued
    | PieceSpilled
    | SpillFailed
    | PieceRestored
    | PrefixRestored
    | RestoreFailed
    | CacheReset
    | PrefixPinned
    | PrefixUnpinned
    | EntriesDeleted
    | PromotionStarted
    | EntryDemoted
    | OperationRefused
    | MemoryShrunk
    | SweepDone
    | Recovered
)
