"""What the cache knows. Changed by `evolve` alone; read by `decide`.

Three layers: `Namespace` (KV that may be shared), `Node` (a run of tokens in that namespace's radix tree, or a captured
state hanging below one) and `Blob` (stored bytes that nodes point into). `Entry` and `Request` refer to nodes by number.
Containers derived from these (recency orders, indexes) live here too, so that no decision ever scans.
"""

from collections import OrderedDict

import msgspec

from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import LOGIC_VERSION, Policy
from mlxcel.core.tokens import TOKEN_BYTES

MEMORY, DISK = "memory", "disk"
NOT_STORED, QUEUED, STORED = 0, 1, 2
PROMOTION = "promotion"  # source of a request that only stands for an operator's errand


class Namespace(msgspec.Struct, array_like=True):
    """KV that agrees in every dimension that matters (`key`), and the facts needed to size it."""

    id: int
    root: int
    key: NamespaceKey
    digest: bytes
    model_id: str
    kv_bytes_per_token: int
    reuse: str
    fingerprint_parts: dict[str, str]

    @property
    def block_size(self) -> int:
        """Tokens that a cut must be a multiple of."""
        return self.key.block_size


class Node(msgspec.Struct, array_like=True, gc=False):
    """A run of tokens [start, start + len(label)). `snapshot`: a captured state instead of a segment.

    `row`: first row of the run inside its blob. `memory`/`disk`: counted as resident there. `*_children` count resident
    nodes below. `children`: first block -> node; `snapshots`: tail tokens -> node. `anchored`: entries that end here.
    `leases`, `pinned`: how many requests and pins hold the path through here. A snapshot knows whose it is.
    `answer_tokens`: how many of a snapshot's last tokens are the answer. `uses`: requests that adopted exactly up to here.
    `cuttable`: a snapshot that holds the state of every position before its end too.
    """

    id: int
    parent: int
    namespace: int
    blob: int
    row: int
    start: int
    label: bytes
    last_used_us: int
    snapshot: bool = False
    origin: str = ""
    session_key: str = ""
    leases: int = 0
    pinned: int = 0
    memory: bool = False
    disk: bool = False
    keep_until_us: int = 0
    via: int = 0
    uses: int = 0
    memory_children: int = 0
    disk_children: int = 0
    children: dict[bytes, int] | None = None
    snapshots: dict[bytes, int] | None = None
    anchored: list[int] = []
    template_sig: str = ""
    answer_tokens: int = 0
    cuttable: bool = False

    @property
    def tokens(self) -> int:
        """Length of the run in tokens."""
        return len(self.label) // TOKEN_BYTES

    @property
    def end(self) -> int:
        """Position after the last token of the run."""
        return self.start + len(self.label) // TOKEN_BYTES


class Blob(msgspec.Struct, array_like=True, gc=False):
    """Stored bytes of one run or state. Held in a tier while any node counts on it there (`*_refs`)."""

    id: int
    key: bytes
    nbytes: int
    snapshot: bool
    disk_state: int = NOT_STORED
    stored_bytes: int = 0
    memory_refs: int = 0
    disk_refs: int = 0
    nodes: list[int] = []


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One donated sequence: named by the guide's digest, ending at `node`. `resident`: counted in memory."""

    id: int
    digest: bytes
    namespace: int
    node: int
    length: int
    template_sig: str
    session_key: str
    origin: str
    created_us: int
    last_used_us: int
    ttl_us: int = -1
    hits: int = 0
    resident: bool = True
    pins: int = 0


class Pin(msgspec.Struct, array_like=True, frozen=True):
    """An operator's hold on an entry, under a name. Its whole path stays, whatever its age."""

    name: str
    entry: int
    caller: str
    pinned_us: int


class Request(msgspec.Struct, array_like=True):
    """A running request: its tokens so far, what it adopted, and the node it leases (the root needs no lease)."""

    id: str
    namespace: int
    template_sig: str
    session_key: str
    tokens: bytes
    store: bool
    ttl_us: int
    arrived_us: int
    node: int
    adopted: int = 0
    kept: int = 0
    source: str = "cold"
    restore: list[int] = []
    entry: int = 0
    background: bool = False


class State:
    """The whole state. `lru[tier, snapshot]` orders resident nodes from least to most recent.

    Touching a path moves its deepest node first and the root's child last, so every node stands after all nodes below it:
    the front of each order is always a leaf.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.policy = Policy()
        self.logic_version = LOGIC_VERSION
        self.next_node = self.next_blob = self.next_entry = self.next_namespace = 1
        self.namespaces: dict[int, Namespace] = {}
        self.nodes: dict[int, Node] = {}
        self.blobs: dict[int, Blob] = {}
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.requests: dict[str, Request] = {}
        self.counters: dict[str, int] = {}
        self.reject_reasons: dict[str, int] = {}
        self.last_reject: list[str | int] = []
        self.pins: dict[str, Pin] = {}
        # derived
        self.resident: OrderedDict[int, None] = OrderedDict()
        self.short_lived: dict[int, None] = {}
        self.by_digest: dict[tuple[int, bytes], int] = {}
        self.by_namespace: dict[bytes, int] = {}
        self.blob_by_key: dict[bytes, int] = {}
        self.latest_in_session: dict[tuple[int, str], int] = {}
        self.session_snapshots: dict[tuple[int, str], dict[int, None]] = {}
        self.cuttable_below: dict[int, dict[int, None]] = {}  # node -> cuttable snapshots at or below it, oldest first
        self.buckets: dict[tuple[int, str], dict[int, None]] = {}
        self.related: dict[bytes, list[int]] = {}
        self.lru: dict[tuple[str, bool], OrderedDict[int, None]] = {
            (tier, snapshot): OrderedDict() for tier in (MEMORY, DISK) for snapshot in (False, True)
        }
        self.memory_bytes = {False: 0, True: 0}
        self.disk_bytes = 0

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of this process's life."""
        self.counters[name] = self.counters.get(name, 0) + by

    def in_memory(self, blob: int) -> bool:
        """True when the memory tier holds the blob."""
        return self.blobs[blob].memory_refs > 0

    def readable(self, blob: int) -> bool:
        """True when some tier can give the blob back now."""
        held = self.blobs[blob]
        return held.memory_refs > 0 or held.disk_state == STORED

    def path(self, node_id: int) -> list[Node]:
        """Return the nodes from the root's child down to `node_id`."""
        nodes, at = [], node_id
        while at and self.nodes[at].parent:
            nodes.append(self.nodes[at])
            at = self.nodes[at].parent
        nodes.reverse()
        return nodes

    def path_tokens(self, node_id: int) -> bytes:
        """Return all tokens from position 0 to the end of `node_id`."""
        return b"".join(node.label for node in self.path(node_id))
