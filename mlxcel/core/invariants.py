"""What is always true of a state. Checked by tests after every step, by fsck, and by the service when idle."""

from mlxcel.core.state import MEMORY, NOT_STORED, QUEUED, STORED, State
from mlxcel.core.tokens import TOKEN_BYTES


def broken_invariants(state: State) -> list[str]:
    """Return a sentence for each invariant that does not hold; empty when all is well."""
    return [
        *_tree(state),
        *_bytes(state),
        *_orders(state),
        *_entries(state),
        *_leases(state),
        *_pins(state),
        *_indexes(state),
    ]


def _tree(state: State) -> list[str]:
    roots = {namespace.root for namespace in state.namespaces.values()}
    found = [f"namespace root {root} is gone" for root in roots if root not in state.nodes]
    for node in state.nodes.values():
        if not node.parent:
            if node.id not in roots:
                found.append(f"node {node.id} is the root of no namespace")
            continue
        parent = state.nodes.get(node.parent)
        if parent is None:
            found.append(f"node {node.id} hangs below node {node.parent}, which is gone")
            continue
        table = (parent.snapshots if node.snapshot else parent.children) or {}
        if node.id not in table.values():
            found.append(f"node {node.id} is not filed under its parent {parent.id}")
        if node.start != parent.end:
            found.append(f"node {node.id} starts at {node.start}, its parent ends at {parent.end}")
        if not node.memory and not node.disk:
            found.append(f"node {node.id} is resident nowhere")
        block = state.namespaces[node.namespace].block_size * TOKEN_BYTES
        if not node.snapshot and (not node.label or len(node.label) % block):
            found.append(f"node {node.id} is no run of whole blocks")
        if node.id not in state.blobs[node.blob].nodes:
            found.append(f"blob {node.blob} does not know its node {node.id}")
    return found


def _bytes(state: State) -> list[str]:
    found = []
    memory = {False: 0, True: 0}
    disk = 0
    for blob in state.blobs.values():
        nodes = [state.nodes[n] for n in blob.nodes]
        if blob.memory_refs != sum(n.memory for n in nodes) or blob.disk_refs != sum(n.disk for n in nodes):
            found.append(f"blob {blob.id} counts its holders wrongly")
        if (blob.disk_refs > 0) != (blob.disk_state in (QUEUED, STORED)):
            found.append(f"blob {blob.id} has disk state {blob.disk_state} with {blob.disk_refs} holders")
        if blob.disk_state == NOT_STORED and blob.stored_bytes:
            found.append(f"blob {blob.id} claims stored bytes but is not stored")
        memory[blob.snapshot] += blob.nbytes if blob.memory_refs else 0
        disk += blob.stored_bytes
    if memory != state.memory_bytes:
        found.append(f"memory bytes are {memory}, counted {state.memory_bytes}")
    if disk != state.disk_bytes:
        found.append(f"disk bytes are {disk}, counted {state.disk_bytes}")
    return found


def _orders(state: State) -> list[str]:
    found = []
    for (tier, snapshot), order in state.lru.items():
        resident = {
            n.id
            for n in state.nodes.values()
            if n.parent and n.snapshot == snapshot and (n.memory if tier == MEMORY else n.disk)
        }
        if resident != set(order):
            found.append(f"the {tier} order misses {sorted(resident ^ set(order))[:5]}")
        rank = {node_id: at for at, node_id in enumerate(order)}
        for node_id in order:
            parent = state.nodes[node_id].parent
            if parent in rank and rank[parent] < rank[node_id]:
                found.append(f"the {tier} order has node {parent} before its child {node_id}")
    for node in state.nodes.values():
        below = [state.nodes[n] for table in (node.children, node.snapshots) for n in (table or {}).values()]
        if node.memory_children != sum(n.memory for n in below) or node.disk_children != sum(n.disk for n in below):
            found.append(f"node {node.id} counts what is resident below it wrongly")
    return found


def _entries(state: State) -> list[str]:
    found = []
    for entry in state.entries.values():
        node = state.nodes.get(entry.node)
        if node is None or entry.id not in node.anchored:
            found.append(f"entry {entry.id} ends at node {entry.node}, which does not know it")
        elif entry.length > node.end or not node.parent:
            found.append(f"entry {entry.id} is longer than its path")
        if entry.resident != (entry.id in state.resident):
            found.append(f"entry {entry.id} is resident or not, depending on whom you ask")
    anchored = [e for node in state.nodes.values() for e in node.anchored]
    if sorted(anchored) != sorted(state.entries):
        found.append("nodes and entries disagree about who ends where")
    if {e: key for key, e in state.by_digest.items()} != {
        e.id: (e.namespace, e.digest) for e in state.entries.values()
    }:
        found.append("two living entries share a digest, or one is not filed under its own")
    return found


def _leases(state: State) -> list[str]:
    held: dict[int, int] = {}
    for request in state.requests.values():
        for node in state.path(request.node):
            held[node.id] = held.get(node.id, 0) + 1
    wrong = [n.id for n in state.nodes.values() if n.leases != held.get(n.id, 0)]
    return [f"nodes {wrong[:5]} have leases without owners"] if wrong else []


def _pins(state: State) -> list[str]:
    held: dict[int, int] = {}
    per_entry: dict[int, int] = {}
    for name, pin in state.pins.items():
        entry = state.entries.get(pin.entry)
        if entry is None or name != pin.name:
            return [f"pin {name!r} holds entry {pin.entry}, which is gone"]
        per_entry[entry.id] = per_entry.get(entry.id, 0) + 1
        for node in state.path(entry.node):
            held[node.id] = held.get(node.id, 0) + 1
    wrong = [n.id for n in state.nodes.values() if n.pinned != held.get(n.id, 0)]
    found = [f"nodes {wrong[:5]} count their pins wrongly"] if wrong else []
    wrong = [e.id for e in state.entries.values() if e.pins != per_entry.get(e.id, 0)]
    return [*found, f"entries {wrong[:5]} count their pins wrongly"] if wrong else found


def _indexes(state: State) -> list[str]:
    found = []
    snapshots: dict[tuple[int, str], set[int]] = {}
    for node in state.nodes.values():
        if node.snapshot:
            snapshots.setdefault((node.namespace, node.session_key), set()).add(node.id)
    if snapshots != {key: set(members) for key, members in state.session_snapshots.items()}:
        found.append("the snapshots of a session are not those that its index lists")
    below: dict[int, list[int]] = {}
    for node in sorted(state.nodes.values(), key=lambda n: n.id):
        at = node.parent if node.cuttable else 0
        while at:
            below.setdefault(at, []).append(node.id)
            at = state.nodes[at].parent
    if below != {at: list(members) for at, members in state.cuttable_below.items()}:
        found.append("the cuttable snapshots below a node are not those that its index lists, oldest first")
    buckets: dict[tuple[int, str], set[int]] = {}
    for entry in state.entries.values():
        buckets.setdefault((entry.namespace, entry.template_sig), set()).add(entry.id)
    if buckets != {key: set(members) for key, members in state.buckets.items()}:
        found.append("the entries of a bucket are not those that its index lists")
    return found
