"""Splitting floats into byte planes and joining them again, in numpy, in blocks that stay in the cache.

Only the plane with sign and exponent bits has any redundancy worth coding; mantissa bytes of KV are noise. Layouts of
the coded form, n elements:

    2 bytes (bfloat16, float16):  high plane n bytes | low plane n bytes
    4 bytes (float32):            top plane n bytes  | second byte n bytes | low half n x uint16

All functions take little-endian words and run without the GIL for all but a few microseconds a block.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_BLOCK = 32_768  # elements; two planes, the words and the scratch word block fit a 1 MiB second-level cache


def split2(words: npt.NDArray[np.uint16], high: Bytes, low: Bytes) -> None:
    """Write the high bytes of `words` to `high` and the low bytes to `low` (all of length n)."""
    scratch = np.empty(min(_BLOCK, words.size), np.uint16)
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        shifted = scratch[: block.size]
        np.right_shift(block, 8, out=shifted)
        np.copyto(high[start : start + block.size], shifted, casting="unsafe")
        np.copyto(low[start : start + block.size], block, casting="unsafe")


def join2(high: Bytes, low: Bytes, words: npt.NDArray[np.uint16]) -> None:
    """The inverse of `split2`; fills `words`."""
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        np.copyto(block, high[start : start + block.size])
        np.left_shift(block, 8, out=block)
        np.bitwise_or(block, low[start : start + block.size], out=block)


def split4(words: npt.NDArray[np.uint32], top: Bytes, second: Bytes, low: npt.NDArray[np.uint16]) -> None:
    """Write bits 24-31 of `words` to `top`, 16-23 to `second`, 0-15 to `low` (all of length n)."""
    scratch = np.empty(min(_BLOCK, words.size), np.uint32)
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        part = slice(start, start + block.size)
        shifted = scratch[: block.size]
        np.copyto(low[part], block, casting="unsafe")
        np.right_shift(block, 16, out=shifted)
        np.copyto(second[part], shifted, casting="unsafe")
        np.right_shift(shifted, 8, out=shifted)
        np.copyto(top[part], shifted, casting="unsafe")


def join4(top: Bytes, second: Bytes, low: npt.NDArray[np.uint16], words: npt.NDArray[np.uint32]) -> None:
    """The inverse of `split4`; fills `words`."""
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        part = slice(start, start + block.size)
        np.copyto(block, top[part])
        np.left_shift(block, 8, out=block)
        np.bitwise_or(block, second[part], out=block)
        np.left_shift(block, 16, out=block)
        np.bitwise_or(block, low[part], out=block)
