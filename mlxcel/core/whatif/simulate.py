"""The one entrance to all simulated policies: a trace, a policy's name and a capacity give an outcome."""

from collections.abc import Callable

from mlxcel.core.whatif.blocks import BlockTrace
from mlxcel.core.whatif.entries import simulate_entries
from mlxcel.core.whatif.outcome import Outcome
from mlxcel.core.whatif.ranked import simulate_ranked
from mlxcel.core.whatif.ranking import BOUND, RANKINGS
from mlxcel.core.whatif.s3fifo import simulate_s3fifo

_SIMULATIONS: dict[str, Callable[[BlockTrace, int], Outcome]] = {
    "lru": simulate_entries,
    "s3-fifo": simulate_s3fifo,
}
POLICIES = ("lru", "leaf-lru", "lfu", "gdsf", "s3-fifo", BOUND)


def simulate(trace: BlockTrace, policy: str, capacity_blocks: int) -> Outcome:
    """Run the trace through a cache of `capacity_blocks` under one of POLICIES. Raises KeyError for another name."""
    if policy in RANKINGS:
        return simulate_ranked(trace, policy, capacity_blocks)
    return _SIMULATIONS[policy](trace, capacity_blocks)
