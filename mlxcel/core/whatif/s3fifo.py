"""S3-FIFO (Yang et al., SOSP'23) on a tree: a small queue for newcomers, a main queue, and names of what left the small one.

Here only leaves can leave: an inner block that comes to the front goes to the back of the main queue.
"""

from collections import OrderedDict, deque

from mlxcel.core.whatif.blocks import BlockTrace
from mlxcel.core.whatif.simulate import Outcome

SMALL_SHARE = 10  # one in so many blocks, as in the paper
MOST_USES = 3

_SMALL, _MAIN = 1, 2


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

    def evict_one(self, own: set[int]) -> bool:
        """Let one leaf go; False when nothing can."""
        patience = (MOST_USES + 2) * (len(self.small) + len(self.main)) + 1
        while patience and (self.small or self.main):
            patience -= 1
            if self.small and (len(self.small) >= self.small_target or not self.main):
                block = self.small.popleft()
                if self.uses[block] > 1 or self.below[block] or block in own:
                    self.uses[block] = 0
                    self._to_main(block)
                    continue
                self.ghosts[block] = None
                if len(self.ghosts) > self.ghost_limit:
                    self.ghosts.popitem(last=False)
            else:
                block = self.main.popleft()
                if self.uses[block] or self.below[block] or block in own:
                    self.uses[block] = max(0, self.uses[block] - 1)
                    self.main.append(block)
                    continue
            self.where[block] = 0
            if self.parents[block] >= 0:
                self.below[self.parents[block]] -= 1
            return True
        return False


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
