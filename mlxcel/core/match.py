"""Longest prefix of a token sequence that a namespace's tree knows. Compares runs of bytes, never token by token."""

import msgspec

from mlxcel.core.state import Namespace, Node, State
from mlxcel.core.tokens import TOKEN_BYTES


class Match(msgspec.Struct, frozen=True):
    """`path`: nodes matched whole, root's child first; `partial`: the node left in its middle (0: none) after
    `partial_tokens` of its tokens. `length`: tokens matched in all, a multiple of the block size."""

    path: list[Node]
    partial: int
    partial_tokens: int
    length: int


def match_prefix(state: State, namespace: Namespace, tokens: bytes, limit: int | None = None) -> Match:
    """Walk the tree along `tokens` (at most `limit` tokens of it); cost grows with the number of nodes on the path."""
    block_bytes = namespace.block_size * TOKEN_BYTES
    stop = len(tokens) if limit is None else min(len(tokens), limit * TOKEN_BYTES)
    node, at, path = state.nodes[namespace.root], 0, []
    while node.children is not None and stop - at >= block_bytes:
        child_id = node.children.get(tokens[at : at + block_bytes])
        if child_id is None:
            break
        child = state.nodes[child_id]
        size = len(child.label)
        if stop - at >= size and tokens[at : at + size] == child.label:
            path.append(child)
            node, at = child, at + size
            continue
        shared = common_blocks(child.label, tokens[at : min(at + size, stop)], block_bytes)
        shared_tokens = shared * namespace.block_size
        return Match(path, child_id, shared_tokens, at // TOKEN_BYTES + shared_tokens)
    return Match(path, 0, 0, at // TOKEN_BYTES)


def common_blocks(left: bytes, right: bytes, block_bytes: int) -> int:
    """Return how many whole blocks agree from the start, by halving."""
    low, high = 0, min(len(left), len(right)) // block_bytes
    if left[: high * block_bytes] == right[: high * block_bytes]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low * block_bytes : middle * block_bytes] == right[low * block_bytes : middle * block_bytes]:
            low = middle
        else:
            high = middle
    return low
