"""Small changes to nodes, blobs and recency that `evolve` is built from. Byte counts change here and nowhere else."""

from collections.abc import Iterator
from typing import TypeVar

from mlxcel.core.pins import unpin_entry
from mlxcel.core.state import DISK, MEMORY, NOT_STORED, Entry, Node, State
from mlxcel.core.tokens import TOKEN_BYTES

Key = TypeVar("Key")


def child_key(state: State, node: Node) -> bytes:
    """Return what the parent files this node under: the first block, or the whole tail of a snapshot."""
    if node.snapshot:
        return node.label
    return node.label[: state.namespaces[node.namespace].block_size * TOKEN_BYTES]


def insert(state: State, node: Node) -> None:
    """Hang a new node below its parent and count its blob's reference list."""
    parent = state.nodes[node.parent]
    if node.snapshot:
        parent.snapshots = parent.snapshots or {}
        parent.snapshots[child_key(state, node)] = node.id
        state.session_snapshots.setdefault((node.namespace, node.session_key), {})[node.id] = None
        index_cuttable(state, node)
    else:
        parent.children = parent.children or {}
        parent.children[child_key(state, node)] = node.id
    state.nodes[node.id] = node
    state.blobs[node.blob].nodes = [*state.blobs[node.blob].nodes, node.id]


def remove(state: State, node: Node) -> None:
    """Take a node out of the tree. Entries that end there end at its parent from now on."""
    bare = not (node.memory or node.disk or node.children or node.snapshots)
    assert bare, "only bare leaves go"
    parent = state.nodes[node.parent]
    table = parent.snapshots if node.snapshot else parent.children
    assert table is not None
    del table[child_key(state, node)]
    if node.snapshot:
        _drop(state.session_snapshots, (node.namespace, node.session_key), node.id)
    if node.cuttable:
        for above in _above(state, node):
            _drop(state.cuttable_below, above, node.id)
    for entry_id in node.anchored:
        entry = state.entries[entry_id]
        entry.node, entry.length = parent.id, min(entry.length, parent.end)
        parent.anchored = [*parent.anchored, entry_id]
    blob = state.blobs[node.blob]
    blob.nodes = [n for n in blob.nodes if n != node.id]
    if not blob.nodes:
        del state.blobs[blob.id]
        del state.blob_by_key[blob.key]
    del state.nodes[node.id]


def index_cuttable(state: State, node: Node) -> None:
    """File a cuttable snapshot under every node above it, the root included: few, since its window has not wrapped."""
    if node.cuttable:
        for above in _above(state, node):
            state.cuttable_below.setdefault(above, {})[node.id] = None


def _above(state: State, node: Node) -> Iterator[int]:
    at = node.parent
    while at:
        yield at
        at = state.nodes[at].parent


def _drop(index: dict[Key, dict[int, None]], key: Key, member: int) -> None:
    members = index[key]
    del members[member]
    if not members:
        del index[key]


def enter_memory(state: State, node: Node) -> None:
    """Count the node as resident in memory, most recent."""
    if node.memory:
        return
    blob = state.blobs[node.blob]
    if blob.memory_refs == 0:
        state.memory_bytes[blob.snapshot] += blob.nbytes
    blob.memory_refs += 1
    node.memory = True
    state.nodes[node.parent].memory_children += 1
    state.lru[MEMORY, node.snapshot][node.id] = None


def leave_memory(state: State, node: Node) -> None:
    """Stop counting the node as resident in memory."""
    if not node.memory:
        return
    blob = state.blobs[node.blob]
    blob.memory_refs -= 1
    if blob.memory_refs == 0:
        state.memory_bytes[blob.snapshot] -= blob.nbytes
    node.memory = False
    state.nodes[node.parent].memory_children -= 1
    del state.lru[MEMORY, node.snapshot][node.id]


def enter_disk(state: State, node: Node) -> None:
    """Count the node as kept on disk (its blob written or queued)."""
    if node.disk:
        return
    state.blobs[node.blob].disk_refs += 1
    node.disk = True
    state.nodes[node.parent].disk_children += 1
    state.lru[DISK, node.snapshot][node.id] = None


def leave_disk(state: State, node: Node) -> None:
    """Stop counting the node as kept on disk; the last holder takes the blob's stored bytes along."""
    if not node.disk:
        return
    blob = state.blobs[node.blob]
    blob.disk_refs -= 1
    if blob.disk_refs == 0:
        state.disk_bytes -= blob.stored_bytes
        blob.disk_state, blob.stored_bytes = NOT_STORED, 0
    node.disk = False
    state.nodes[node.parent].disk_children -= 1
    del state.lru[DISK, node.snapshot][node.id]


def touch(state: State, node_id: int) -> None:
    """Make a path most recent, its deepest node first, so that nodes always stand after all nodes below them."""
    node = state.nodes[node_id]
    while node.parent:
        node.last_used_us = state.now_us
        if not node.memory and state.blobs[node.blob].memory_refs:
            enter_memory(state, node)  # its bytes are there anyway, for another node of the same blob
        if node.memory:
            state.lru[MEMORY, node.snapshot].move_to_end(node.id)
        if node.disk:
            state.lru[DISK, node.snapshot].move_to_end(node.id)
        node = state.nodes[node.parent]


def raise_ancestors(state: State, node_id: int) -> None:
    """Let a path's disk order stand again after a node joined it late: the node, then all before it."""
    node = state.nodes[node_id]
    while node.parent:
        if node.disk:
            state.lru[DISK, node.snapshot].move_to_end(node.id)
        node = state.nodes[node.parent]


def lease(state: State, node_id: int) -> None:
    """Protect a node and all before it from eviction. The root needs no protection."""
    node = state.nodes[node_id]
    while node.parent:
        node.leases += 1
        node = state.nodes[node.parent]


def release(state: State, node_id: int) -> None:
    """Give one lease back, along the whole path."""
    node = state.nodes[node_id]
    while node.parent:
        assert node.leases > 0, "a lease is released once"
        node.leases -= 1
        node = state.nodes[node.parent]


def split(state: State, node_id: int, head_id: int, tokens: int) -> None:
    """Cut a node after `tokens` tokens: a new `head` takes the front, the node keeps its number, children and end."""
    node = state.nodes[node_id]
    parent = state.nodes[node.parent]
    at = tokens * TOKEN_BYTES
    head = Node(head_id, parent.id, node.namespace, node.blob, node.row, node.start, node.label[:at], node.last_used_us)
    head.via, head.keep_until_us, head.leases, head.pinned = node.via, node.keep_until_us, node.leases, node.pinned
    assert parent.children is not None
    parent.children[child_key(state, head)] = head_id
    state.nodes[head_id] = head
    blob = state.blobs[node.blob]
    blob.nodes = [*blob.nodes, head_id]
    node.parent, node.row, node.start, node.label = head_id, node.row + tokens, node.start + tokens, node.label[at:]
    head.children = {child_key(state, node): node_id}
    if node_id in state.cuttable_below:
        state.cuttable_below[head_id] = dict(state.cuttable_below[node_id])
    if node.memory:
        head.memory, head.memory_children = True, 1
        blob.memory_refs += 1
        state.lru[MEMORY, False][head_id] = None
    if node.disk:
        head.disk, head.disk_children = True, 1
        blob.disk_refs += 1
        state.lru[DISK, False][head_id] = None


def remember_entry(state: State, entry: Entry) -> None:
    """File a new entry as the most recent one."""
    state.entries[entry.id] = entry
    state.by_digest[entry.namespace, entry.digest] = entry.id
    state.buckets.setdefault((entry.namespace, entry.template_sig), {})[entry.id] = None
    node = state.nodes[entry.node]
    node.anchored = [*node.anchored, entry.id]
    state.latest_in_session[entry.namespace, entry.session_key] = entry.id
    if entry.ttl_us >= 0:
        state.short_lived[entry.id] = None
    if entry.resident:
        state.resident[entry.id] = None


def forget_entry(state: State, entry_id: int) -> None:
    """Drop an entry and its pins from every index; its pieces are another matter."""
    unpin_entry(state, state.entries[entry_id])
    entry = state.entries.pop(entry_id)
    _drop(state.buckets, (entry.namespace, entry.template_sig), entry_id)
    state.resident.pop(entry_id, None)
    state.short_lived.pop(entry_id, None)
    if state.by_digest.get((entry.namespace, entry.digest)) == entry_id:
        del state.by_digest[entry.namespace, entry.digest]
    node = state.nodes[entry.node]
    node.anchored = [e for e in node.anchored if e != entry_id]
    if state.latest_in_session.get((entry.namespace, entry.session_key)) == entry_id:
        del state.latest_in_session[entry.namespace, entry.session_key]


def touch_entry(state: State, entry: Entry) -> None:
    """Make an entry the most recent, in memory again if its pieces are."""
    entry.last_used_us = state.now_us
    state.entries.move_to_end(entry.id)
    if state.nodes[entry.node].memory:
        entry.resident = True
        state.resident[entry.id] = None
        state.resident.move_to_end(entry.id)
    state.latest_in_session[entry.namespace, entry.session_key] = entry.id
