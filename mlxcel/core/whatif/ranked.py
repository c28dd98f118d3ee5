"""A lean cache of blocks whose leaves leave in order of rank. Pure; with leaf-lru it agrees with `decide` (tested).

What holds for every policy: a prefix is served as far as all its blocks are held; a served or new block is used; only a
leaf leaves; what the arrival itself stands on does not leave for it; a prompt larger than the cache is not kept.
"""

from heapq import heappop, heappush

from mlxcel.core.whatif.blocks import BlockTrace
from mlxcel.core.whatif.outcome import Outcome
from mlxcel.core.whatif.ranking import BOUND, RANKINGS, Ranking


class Leaves:
    """Leaves in order of rank, kept lazily: a place in the heap counts only while its rank is still the leaf's own."""

    def __init__(self, ranking: Ranking, blocks: int) -> None:
        self.ranking = ranking
        self.held = bytearray(blocks)
        self.below = [0] * blocks
        self._heap: list[tuple[object, int]] = []

    def became_leaf(self, block: int) -> None:
        """The block is held and nothing below it is; or its rank has changed while it is a leaf."""
        heappush(self._heap, (self.ranking.rank(block), block))

    def take(self) -> int:
        """Return the leaf of the lowest rank and forget its place; -1 when there is none."""
        heap, held, below, rank = self._heap, self.held, self.below, self.ranking.rank
        while heap:
            place, block = heappop(heap)
            if held[block] and not below[block] and place == rank(block):
                return block
        return -1


def simulate_ranked(trace: BlockTrace, policy: str, capacity: int) -> Outcome:
    """Run the trace with one of `RANKINGS`. Raises KeyError for another policy."""
    ranking = RANKINGS[policy](trace)
    leaves = Leaves(ranking, trace.blocks)
    held, below, parents, used = leaves.held, leaves.below, trace.parents, ranking.used
    size = evictions = refused = 0
    hits: list[int] = []
    bound = policy == BOUND
    for at, arrival in enumerate(trace.arrivals):
        path = arrival.blocks
        found = 0
        for block in path:
            if not held[block]:
                break
            used(block, at)
            found += 1
        hits.append(found)
        new = path[found:]
        if bound:
            size += _insert(leaves, new, at, parents)
            size, gone = _trim(leaves, parents, size, capacity)
        elif len(path) > capacity:
            refused += 1
            new, gone = (), 0
        else:
            gone = _make_room(leaves, parents, size + len(new) - capacity, path[found - 1] if found else -1)
            size -= gone
            if size + len(new) > capacity:
                refused += 1
                new = new[: capacity - size]
            size += _insert(leaves, new, at, parents)
        evictions += gone
        kept = found + len(new)
        if kept and held[path[kept - 1]] and not below[path[kept - 1]]:
            leaves.became_leaf(path[kept - 1])
    return Outcome(policy, capacity, hits, evictions, refused)


def _insert(leaves: Leaves, new: tuple[int, ...], at: int, parents: list[int]) -> int:
    held, below, used = leaves.held, leaves.below, leaves.ranking.used
    for block in new:
        held[block] = 1
        used(block, at)
        before = parents[block]
        if before >= 0:
            below[before] += 1
    if new:
        leaves.became_leaf(new[-1])
    return len(new)


def _evict(leaves: Leaves, parents: list[int], block: int) -> None:
    leaves.held[block] = 0
    leaves.ranking.evicted(block)
    before = parents[block]
    if before >= 0:
        leaves.below[before] -= 1
        if not leaves.below[before]:
            leaves.became_leaf(before)


def _make_room(leaves: Leaves, parents: list[int], need: int, own: int) -> int:
    """Evict up to `need` leaves, passing over `own`, with which this arrival's served prefix ends (-1: none)."""
    gone = 0
    passed_over = False
    while gone < need:
        block = leaves.take()
        if block < 0:
            break
        if block == own:
            passed_over = True
            continue
        _evict(leaves, parents, block)
        gone += 1
    if passed_over and not leaves.below[own]:
        leaves.became_leaf(own)
    return gone


def _trim(leaves: Leaves, parents: list[int], size: int, capacity: int) -> tuple[int, int]:
    """The bound may keep nothing of what has just come: all is in, then the worst leaves."""
    gone = 0
    while size > capacity:
        block = leaves.take()
        assert block >= 0, "a cache over its capacity has a leaf"
        _evict(leaves, parents, block)
        size, gone = size - 1, gone + 1
    return size, gone
