"""Planning what of a sequence must be newly kept: where its tokens leave the tree and how the rest is cut into pieces."""

from collections.abc import Set

import msgspec

from mlxcel.core import events as ev
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.keys import PieceHasher
from mlxcel.core.match import Match, match_prefix
from mlxcel.core.state import MEMORY, Namespace, Request, State


class Extension(msgspec.Struct):
    """`events` add what is new; afterwards `node` covers exactly `length` tokens. `snapshot`: events of a captured state."""

    events: list[ev.Event]
    node: int
    length: int
    next_node: int
    next_blob: int
    new_bytes: int


def plan_extension(
    state: State, request: Request, tokens: bytes, length: int, extra_bytes: int = 0, keep: Set[int] = frozenset()
) -> Extension:
    """Keep tokens [0, length) of the request: evictions that make room first, then a split, then new pieces.

    `length` is a multiple of the block size. Where not enough can be evicted, the kept prefix is shorter than asked.
    `extra_bytes`: snapshot bytes that will follow; room for them is made in the snapshot budget. `keep`: nodes that must stay.
    """
    namespace = state.namespaces[request.namespace]
    found = match_prefix(state, namespace, tokens, length)
    stop = _first_unreadable(state, found)
    if stop is not None:
        found, length = Match(stop.path, 0, 0, stop.length), stop.length
    path = {node.id for node in found.path} | ({found.partial} if found.partial else set())
    plan = EvictionPlan(state, path | keep)
    new_bytes = (length - found.length) * namespace.kv_bytes_per_token
    room = _make_room(state, plan, new_bytes, extra_bytes)
    if room < new_bytes:
        length = found.length + room // namespace.kv_bytes_per_token // namespace.block_size * namespace.block_size
    events = list(plan.events)
    parent = found.path[-1].id if found.path else namespace.root
    next_node = state.next_node
    if found.partial:
        events.append(ev.PieceSplit(found.partial, next_node, found.partial_tokens))
        parent, next_node = next_node, next_node + 1
    sealed = _seal_runs(state, request, namespace, tokens, found.length, length, parent, next_node)
    new_bytes = sum(piece.nbytes for piece in sealed)
    return Extension(
        events=[*events, *sealed],
        node=sealed[-1].node if sealed else parent,
        length=max(length, found.length),
        next_node=next_node + len(sealed),
        next_blob=state.next_blob + len(sealed),
        new_bytes=new_bytes,
    )


def _first_unreadable(state: State, found: Match) -> Match | None:
    """Return the match cut before a piece that only waits to be written: nothing may be built on bytes that can still fail."""
    nodes = [*found.path, state.nodes[found.partial]] if found.partial else found.path
    for at, node in enumerate(nodes):
        if not state.readable(node.blob):
            return Match(found.path[:at], 0, 0, node.start)
    return None


def _make_room(state: State, plan: EvictionPlan, new_bytes: int, extra_bytes: int) -> int:
    """Return how many of `new_bytes` fit once the plan has been carried out."""
    policy = state.policy
    if extra_bytes:
        need = state.memory_bytes[True] + extra_bytes - policy.snapshot_capacity_bytes
        plan.make_room(MEMORY, need, state.lru[MEMORY, True])
    need = state.memory_bytes[False] + new_bytes - policy.capacity_bytes
    before = plan.freed_bytes[MEMORY]
    if new_bytes and not plan.make_room(MEMORY, need, state.lru[MEMORY, False]):
        freed = plan.freed_bytes[MEMORY] - before
        return max(0, policy.capacity_bytes - state.memory_bytes[False] + freed)
    return new_bytes


def _seal_runs(
    state: State, request: Request, namespace: Namespace, tokens: bytes, start: int, stop: int, parent: int, node: int
) -> list[ev.PieceSealed]:
    if start >= stop:
        return []
    hasher = PieceHasher(namespace.digest, tokens)
    blob, sealed = state.next_blob, []
    spill = state.policy.write_policy == "behind"
    for at in range(start, stop, state.policy.segment_tokens):
        end = min(at + state.policy.segment_tokens, stop)
        nbytes = (end - at) * namespace.kv_bytes_per_token
        sealed.append(ev.PieceSealed(request.id, node, parent, blob, hasher.key(at, end), at, end - at, nbytes, spill))
        parent, node, blob = node, node + 1, blob + 1
    return sealed
