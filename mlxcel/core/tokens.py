"""Token sequences as bytes: each id as int32 little-endian, so that comparing is a memcmp and slicing is cheap."""

from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def from_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids (each 0 <= id < 2**31) into bytes. Raises OverflowError on an id out of range."""
    packed = array("i", ids)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def to_ids(tokens: bytes) -> list[int]:
    """Unpack bytes into token ids."""
    packed = array("i")
    packed.frombytes(tokens)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tolist()


def count(tokens: bytes) -> int:
    """Return the number of tokens in `tokens`."""
    return len(tokens) // TOKEN_BYTES


def cut(tokens: bytes, start: int, stop: int) -> bytes:
    """Return tokens [start, stop) as bytes; positions are in tokens."""
    return tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES]


def common_tokens(left: bytes, right: bytes) -> int:
    """Return the length in tokens of the longest common prefix; O(n) compares by halving, no Python loop per token."""
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    if left[: high * TOKEN_BYTES] == right[: high * TOKEN_BYTES]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low * TOKEN_BYTES : middle * TOKEN_BYTES] == right[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low


_BIG_ENDIAN = array("i", [1]).tobytes()[0] == 0
