"""S3-FIFO (Yang et al., SOSP'23) on a tree: a small queue for newcomers, a main queue, and names of what left the small one.

Here only leaves can leave: an inner block that comes to the front steps aside, and joins the main queue's back when it has
become a leaf.
"""

from collections import OrderedDict, deque
from collections.abc import Collection

from mlxcel.core.whatif.blocks import BlockTrace
from mlxcel.core.whatif.outcome import Outcome

SMALL_SHARE = 10  # one in so many blocks, as in the paper
MOST_USES = 3

_SMALL, _MAIN, _ASIDE = 1, 2, 3


class _Queues:
    def __init__(self, trace: BlockTrace, capacity: int) -> None:
        self.where = bytearray(trace.blocks)
        self.uses = bytearray(trace.blocks)
        self.below = [0] * trace.blocks
        self.parents = trace.parents
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.small_target = max(1, capacity // SMALL_SHARE)
        self.ghost_limit = max(1, capacity - self.small_target)

    def add(self, block: int) -> None:
        if block in self.ghosts:
            del self.ghosts[block]
            self._to_main(block)
        else:
            self.where[block] = _SMALL
            self.small.append(block)
        self.uses[block] = 0
        if self.parents[block] >= 0:
            self.below[self.parents[block]] += 1

    def _to_main(self, block: int) -> None:
        self.where[block] = _MAIN
        self.main.append(block)

    def evict_one(self, own: Collection[int]) -> bool:
        """Let one leaf go; False when nothing can."""
        patience = (MOST_USES + 2) * (len(self.small) + len(self.main)) + 1
        while patience and (self.small or self.main):
            patience -= 1
            from_small = bool(self.small) and (len(self.small) >= self.small_target or not self.main)
            block = (self.small if from_small else self.main).popleft()
            if self.below[block]:
                self.where[block] = _ASIDE
            elif from_small and (self.uses[block] > 1 or block in own):
                self.uses[block] = 0
                self._to_main(block)
            elif not from_small and (self.uses[block] or block in own):
                self.uses[block] = max(0, self.uses[block] - 1)
                self.main.append(block)
            else:
                self._leave(block, from_small)
                return True
        return False

    def _leave(self, block: int, from_small: bool) -> None:
        if from_small:
            self.ghosts[block] = None
            if len(self.ghosts) > self.ghost_limit:
                self.ghosts.popitem(last=False)
        self.where[block] = 0
        before = self.parents[block]
        if before >= 0:
            self.below[before] -= 1
            if not self.below[before] and self.where[before] == _ASIDE:
                self._to_main(before)


def simulate_s3fifo(trace: BlockTrace, capacity: int) -> Outcome:
    """Run the trace through both queues, `capacity` blocks in all."""
    queues = _Queues(trace, capacity)
    where, uses = queues.where, queues.uses
    size = evictions = refused = 0
    hits: list[int] = []
    for arrival in trace.arrivals:
        path = arrival.blocks
        found = 0
        for block in path:
            if not where[block]:
                break
            if uses[block] < MOST_USES:
                uses[block] += 1
            found += 1
        hits.append(found)
        if len(path) > capacity:
            refused += 1
            continue
        new = path[found:]
        own = set(path[:found]) if size + len(new) > capacity else set()
        while size + len(new) > capacity and queues.evict_one(own):
            size, evictions = size - 1, evictions + 1
        if size + len(new) > capacity:
            refused += 1
            new = new[: capacity - size]
        for block in new:
            queues.add(block)
        size += len(new)
    return Outcome("s3-fifo", capacity, hits, evictions, refused)
