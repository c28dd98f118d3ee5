"""What a simulated cache did with a trace."""

import msgspec


class Outcome(msgspec.Struct, frozen=True):
    """What a policy did with a trace. `hits[i]`: blocks of arrival i that were served; `refused`: arrivals not kept whole."""

    policy: str
    capacity_blocks: int
    hits: list[int]
    evictions: int
    refused: int

    @property
    def hit_blocks(self) -> int:
        """Blocks served over the whole trace."""
        return sum(self.hits)
