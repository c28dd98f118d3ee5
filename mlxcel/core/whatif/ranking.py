"""Who leaves first: ranking functions over the leaves of a tree of blocks. The leaf of the lowest rank is evicted.

leaf-lru   the leaf used least recently (the server's own order)
lfu        the leaf used least often, the least recent of equals
gdsf       Greedy-Dual-Size-Frequency (Cherkasova 1998): clock + uses x prefill time saved per byte
belady     the leaf whose next use is farthest away (Belady 1966): needs the future, a bound on equal blocks
"""

from collections.abc import Callable
from typing import Protocol

from mlxcel.core.whatif.blocks import BlockTrace

BOUND = "belady"
NEVER = 1 << 60
ATTENTION_EQUALS_REST_TOKENS = 32_768
"""Position at which attention costs as much as the rest of a token's prefill: 2 x weights = 4 x layers x width x position
(multiply and add; scores and values), so 8e9 x 2 / (4 x 32 x 4096), about 30k, for a dense 8B model."""


class Ranking(Protocol):
    """Ranks the blocks of one trace. Ranks are compared only; `rank` is asked again after each use."""

    def used(self, block: int, at: int) -> None:
        """Arrival number `at` used the block, which is or comes to be in the cache."""
        ...

    def rank(self, block: int) -> object:
        """Return what leaves are ordered by; the lowest leaves first."""
        ...

    def evicted(self, block: int) -> None:
        """The block has left."""
        ...


class LeafLru:
    """Least recently used first."""

    def __init__(self, trace: BlockTrace) -> None:
        self._last = [0] * trace.blocks
        self.rank = self._last.__getitem__

    def used(self, block: int, at: int) -> None:
        self._last[block] = at

    def evicted(self, block: int) -> None:
        """Nothing is kept of a block that left."""


class Lfu:
    """Least often used first. A block that comes back starts anew."""

    def __init__(self, trace: BlockTrace) -> None:
        self._uses = [0] * trace.blocks
        self._last = [0] * trace.blocks

    def used(self, block: int, at: int) -> None:
        self._uses[block] += 1
        self._last[block] = at

    def rank(self, block: int) -> tuple[int, int]:
        return self._uses[block], self._last[block]

    def evicted(self, block: int) -> None:
        self._uses[block] = 0


class Gdsf:
    """Clock + uses x prefill time saved per byte. Blocks are equally large, so the saving grows with their position only."""

    def __init__(self, trace: BlockTrace) -> None:
        self._value = [1.0 + depth * trace.block_tokens / ATTENTION_EQUALS_REST_TOKENS for depth in trace.depths]
        self._uses = [0] * trace.blocks
        self._worth = [0.0] * trace.blocks
        self._last = [0] * trace.blocks
        self._clock = 0.0

    def used(self, block: int, at: int) -> None:
        uses = self._uses[block] = self._uses[block] + 1
        self._worth[block] = self._clock + uses * self._value[block]
        self._last[block] = at

    def rank(self, block: int) -> tuple[float, int]:
        return self._worth[block], self._last[block]

    def evicted(self, block: int) -> None:
        self._clock = max(self._clock, self._worth[block])
        self._uses[block] = 0


class Belady:
    """Farthest next use first. Knows the whole trace."""

    def __init__(self, trace: BlockTrace) -> None:
        self._next_of: list[list[int]] = [[] for _ in range(trace.blocks)]
        for at in range(len(trace.arrivals) - 1, -1, -1):
            for block in trace.arrivals[at].blocks:
                self._next_of[block].append(at)
        self._next = [NEVER] * trace.blocks

    def used(self, block: int, at: int) -> None:
        coming = self._next_of[block]
        while coming and coming[-1] <= at:
            coming.pop()
        self._next[block] = coming[-1] if coming else NEVER

    def rank(self, block: int) -> int:
        return -self._next[block]

    def evicted(self, block: int) -> None:
        """The future does not change."""


RANKINGS: dict[str, Callable[[BlockTrace], Ranking]] = {
    "leaf-lru": LeafLru,
    "lfu": Lfu,
    "gdsf": Gdsf,
    "belady": Belady,
}
