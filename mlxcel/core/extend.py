"""Planning what of a sequence must be newly kept: where its tokens leave the tree and how the rest is cut into pieces."""

import msgspec

from mlxcel.core import events as ev
from mlxcel.core.evict import EvictionPlan
from mlxcel.core.keys import PieceHasher
from mlxcel.core.match import Match, match_prefix
from mlxcel.core.room import BOTH, limit_entries, limit_snapshots, make_budget_room, make_room
from mlxcel.core.state import Namespace, Request, State


class Extension(msgspec.Struct):
    """`events` add what is new; afterwards `node` covers exactly `length` tokens. `fits`: false when there is no room for the
    snapshot or entry that was to follow."""

    events: list[ev.Event]
    node: int
    length: int
    next_node: int
    next_blob: int
    fits: bool


def plan_extension(
    state: State,
    request: Request,
    tokens: bytes,
    length: int,
    plan: EvictionPlan,
    live_bytes: int,
    snapshot_bytes: int = 0,
    entry: int | None = None,
) -> Extension:
    """Keep tokens [0, length) of the request: evictions that make room first, then a split, then new pieces.

    `length` is a multiple of the block size. Where not enough can be evicted, the kept prefix is shorter than asked.
    `plan` may have taken something out already; it is told what must stay. `snapshot_bytes`: a snapshot will follow; room
    for it is made too. `entry`: an entry will follow, which takes over from this one (0: from none); room is made in number.
    `fits` says whether all that could be had. `live_bytes`: see Command.
    """
    namespace = state.namespaces[request.namespace]
    found = match_prefix(state, namespace, tokens, length)
    stop = _first_unreadable(state, found)
    if stop is not None:
        found, length = Match(stop.path, 0, 0, stop.length), stop.length
    plan.protected.update(node.id for node in found.path)
    plan.protected.add(found.partial)
    new_bytes = (length - found.length) * namespace.kv_bytes_per_token
    fits = entry is None or limit_entries(plan, entry)
    fits = fits and _make_snapshot_room(state, plan, snapshot_bytes)
    room = _make_room(state, plan, new_bytes, snapshot_bytes + live_bytes)
    fits = fits and (room >= 0 or not (new_bytes or snapshot_bytes))
    if new_bytes and room < new_bytes:
        blocks = max(0, room) // namespace.kv_bytes_per_token // namespace.block_size
        length = found.length + blocks * namespace.block_size
    events = list(plan.events)
    parent = found.path[-1].id if found.path else namespace.root
    next_node = state.next_node
    if found.partial:
        events.append(ev.PieceSplit(found.partial, next_node, found.partial_tokens))
        parent, next_node = next_node, next_node + 1
    sealed = _seal_runs(state, request, namespace, tokens, found.length, length, parent, next_node)
    return Extension(
        events=[*events, *sealed],
        node=sealed[-1].node if sealed else parent,
        length=max(length, found.length),
        next_node=next_node + len(sealed),
        next_blob=state.next_blob + len(sealed),
        fits=fits,
    )


def _first_unreadable(state: State, found: Match) -> Match | None:
    """Return the match cut before a piece that only waits to be written: nothing may be built on bytes that can still fail."""
    nodes = [*found.path, state.nodes[found.partial]] if found.partial else found.path
    for at, node in enumerate(nodes):
        if not state.readable(node.blob):
            return Match(found.path[:at], 0, 0, node.start)
    return None


def _make_snapshot_room(state: State, plan: EvictionPlan, nbytes: int) -> bool:
    """Make room for one more snapshot, in number and in bytes."""
    if not nbytes:
        return True
    return limit_snapshots(plan, 1) and make_budget_room(plan, nbytes, state.policy.snapshot_capacity_bytes, True)


def _make_room(state: State, plan: EvictionPlan, new_bytes: int, other_bytes: int) -> int:
    """Return how many of `new_bytes` of segments fit once the plan has been carried out; below 0 if not even the rest does.

    `other_bytes`: what else the memory cap has to hold: live KV, a snapshot that comes along.
    """
    policy, room = state.policy, new_bytes
    if new_bytes and not make_budget_room(plan, new_bytes, policy.capacity_bytes, False):
        room = max(0, policy.capacity_bytes - plan.memory_bytes((False,)))
    if policy.memory_cap_bytes and (room or other_bytes):
        over = plan.memory_bytes() + room + other_bytes - policy.memory_cap_bytes
        if not make_room(plan, over, BOTH):
            room = policy.memory_cap_bytes - plan.memory_bytes() - other_bytes
    return min(room, new_bytes)


def _seal_runs(
    state: State, request: Request, namespace: Namespace, tokens: bytes, start: int, stop: int, parent: int, node: int
) -> list[ev.PieceSealed]:
    if start >= stop:
        return []
    hasher = PieceHasher(namespace.digest, tokens)
    blob, sealed = state.next_blob, []
    for at in range(start, stop, state.policy.segment_tokens):
        end = min(at + state.policy.segment_tokens, stop)
        nbytes = (end - at) * namespace.kv_bytes_per_token
        spill = state.policy.writes_behind(nbytes)
        sealed.append(ev.PieceSealed(request.id, node, parent, blob, hasher.key(at, end), at, end - at, nbytes, spill))
        parent, node, blob = node, node + 1, blob + 1
    return sealed
