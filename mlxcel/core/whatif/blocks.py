"""Arrivals as paths of blocks: what is left of a prompt when only equality of prefixes matters.

A block has a number; equal numbers mean equal content and an equal prefix before it, so that every block has one parent.
Public traces come in this form; prompts of tokens are brought to it by `chain_prompts`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from mlxcel.core.tokens import TOKEN_BYTES


class BlockArrival(msgspec.Struct, frozen=True, gc=False):
    """One request: `blocks` are the numbers of its prompt's blocks in order. `output_tokens`: length of the answer."""

    at_us: int
    blocks: tuple[int, ...]
    input_tokens: int
    output_tokens: int = 0
    name: str = ""


class BlockTrace(msgspec.Struct, frozen=True):
    """Arrivals with the tree that their blocks form. Block numbers run from 0 to `blocks - 1`.

    `parents[b]`: the block before b (-1: none). `depths[b]`: how many blocks stand before it.
    """

    arrivals: list[BlockArrival]
    block_tokens: int
    parents: list[int]
    depths: list[int]

    @property
    def blocks(self) -> int:
        """Number of different blocks."""
        return len(self.parents)

    @property
    def asked_blocks(self) -> int:
        """Number of prompt blocks over all arrivals."""
        return sum(len(arrival.blocks) for arrival in self.arrivals)


def build_trace(arrivals: Iterable[BlockArrival], block_tokens: int) -> BlockTrace:
    """Number the blocks densely in order of appearance and find each one's parent.

    Raises ValueError when a block follows two different ones: then equal numbers don't mean equal prefixes.
    """
    numbers: dict[int, int] = {}
    parents: list[int] = []
    depths: list[int] = []
    renumbered: list[BlockArrival] = []
    for arrival in arrivals:
        path: list[int] = []
        before = -1
        for depth, name in enumerate(arrival.blocks):
            number = numbers.get(name)
            if number is None:
                number = numbers[name] = len(parents)
                parents.append(before)
                depths.append(depth)
            elif parents[number] != before:
                raise ValueError(f"block {name} follows different blocks, so it does not stand for its prefix")
            path.append(number)
            before = number
        renumbered.append(msgspec.structs.replace(arrival, blocks=tuple(path)))
    return BlockTrace(renumbered, block_tokens, parents, depths)


class PromptArrival(msgspec.Struct, frozen=True):
    """One request with its tokens: `domain` keeps what may not be shared apart (the namespace). `tokens`: int32 LE."""

    at_us: int
    domain: int
    tokens: bytes
    output_tokens: int = 0
    name: str = ""
    kept_tokens: int = -1  # whole sequence kept at the end (prompt and answer); -1: the prompt


def chain_prompts(prompts: Iterable[PromptArrival], block_tokens: int) -> BlockTrace:
    """Cut prompts into whole blocks and number them; a trailing partial block is left out."""
    chain: dict[tuple[int, bytes], int] = {}
    step = block_tokens * TOKEN_BYTES
    arrivals: list[BlockArrival] = []
    for prompt in prompts:
        before, path = -1 - prompt.domain, []
        for at in range(0, len(prompt.tokens) - step + 1, step):
            key = (before, prompt.tokens[at : at + step])
            before = chain.setdefault(key, len(chain))
            path.append(before)
        tokens = len(prompt.tokens) // TOKEN_BYTES
        arrivals.append(BlockArrival(prompt.at_us, tuple(path), tokens, prompt.output_tokens, prompt.name))
    return build_trace(arrivals, block_tokens)


def unbounded_hits(arrivals: Sequence[BlockArrival]) -> tuple[int, int]:
    """Return (blocks that an unbounded cache would have had, blocks asked for).

    A block counts when it and all before it were in an earlier arrival's prompt.
    """
    seen: set[int] = set()
    hits = asked = 0
    for arrival in arrivals:
        asked += len(arrival.blocks)
        for block in arrival.blocks:
            if block not in seen:
                break
            hits += 1
        seen.update(arrival.blocks)
    return hits, asked
