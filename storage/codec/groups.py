"""Coding of one group: all tensors of a piece that have one dtype, end to end, as one run of bytes.

Big planes code faster than many small ones, so tensors are joined before they are split into planes. A group is stored
as its plain planes followed by the one coded plane:

    raw      the bytes as they are
    planes2  low plane (n) | coded high plane
    planes4  second plane (n) | low halves (2n) | coded top plane
    zstd     one frame of level 1
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from storage.codec import coder
from storage.codec.dtypes import Coding, coding_for
from storage.codec.planes import Bytes, join2, join4, split2, split4

MIN_GAIN = 0.03  # below it the time for decoding is not worth the space


def encode(dtype: str, sources: Sequence[Bytes]) -> tuple[Coding, list[Bytes]]:
    """Code the joined `sources`; returns the coding used (raw when another gains under 3 %) and the stored buffers.

    The buffers may be views of `sources` and of fresh memory, never of scratch. The high bytes of float16 go through
    level 1: they hold two mantissa bits, and on real KV its matches gain 2 % over frequencies alone; those of bfloat16
    and float32 are coded by frequencies.
    """
    nbytes = sum(source.size for source in sources)
    coding = coding_for(dtype)
    if coding == "planes2":
        compress = coder.compress_level1 if dtype == "float16" else coder.compress_huffman
        stored = _encode2(sources, nbytes // 2, compress)
    elif coding == "planes4":
        stored = _encode4(sources, nbytes // 4)
    else:
        stored = [_bytes(coder.compress_level1(_joined(sources, nbytes), _ends(sources, 1)))]
    if sum(part.size for part in stored) > (1 - MIN_GAIN) * nbytes:
        return "raw", list(sources)
    return coding, stored


def decode(coding: Coding, stored: memoryview, out: Bytes) -> None:
    """Fill `out` (the group's raw bytes) from its stored bytes. Raises coder.FrameBroken."""
    data = np.frombuffer(stored, np.uint8)
    if coding == "raw":
        if data.size != out.size:
            raise coder.FrameBroken(f"{data.size} plain bytes where {out.size} belong")
        np.copyto(out, data)
    elif coding == "zstd":
        coder.decompress_into(stored, out)
    elif coding == "planes2":
        count = out.size // 2
        high = _coded_plane(stored, count, count)
        join2(high, data[:count], out.view(np.uint16))
    else:
        count = out.size // 4
        top = _coded_plane(stored, 3 * count, count)
        join4(top, data[:count], data[count : 3 * count].view(np.uint16), out.view(np.uint32))


def most_raw_bytes(coding: Coding, stored_bytes: int) -> int:
    """Return the most that `stored_bytes` can decode to: plain planes are stored whole; a frame of zstd expands a block
    of 128 KiB from 4 bytes at best (RFC 8878, 3.1.1.2)."""
    if coding == "planes2":
        return 2 * stored_bytes
    if coding == "planes4":
        return 4 * stored_bytes // 3
    return stored_bytes if coding == "raw" else (128 << 10) * (stored_bytes // 4)


def _encode2(sources: Sequence[Bytes], count: int, compress: Callable[[Bytes, Sequence[int]], bytes]) -> list[Bytes]:
    high, low = coder.scratch(count), np.empty(count, np.uint8)
    at = 0
    for source in sources:
        words = source.view(np.uint16)
        split2(words, high[at : at + words.size], low[at : at + words.size])
        at += words.size
    return [low, _bytes(compress(high, _ends(sources, 2)))]


def _encode4(sources: Sequence[Bytes], count: int) -> list[Bytes]:
    top, plain = coder.scratch(count), np.empty(3 * count, np.uint8)
    second, low = plain[:count], plain[count:].view(np.uint16)
    at = 0
    for source in sources:
        words = source.view(np.uint32)
        part = slice(at, at + words.size)
        split4(words, top[part], second[part], low[part])
        at += words.size
    return [plain, _bytes(coder.compress_huffman(top, _ends(sources, 4)))]


def _coded_plane(stored: memoryview, start: int, count: int) -> Bytes:
    if len(stored) < start:
        raise coder.FrameBroken(f"{len(stored)} stored bytes, {start} of plain planes belong there")
    plane = coder.scratch(count)
    coder.decompress_into(stored[start:], plane)
    return plane


def _joined(sources: Sequence[Bytes], nbytes: int) -> Bytes:
    if len(sources) == 1:
        return sources[0]
    joined = coder.scratch(nbytes)
    at = 0
    for source in sources:
        joined[at : at + source.size] = source
        at += source.size
    return joined


def _ends(sources: Sequence[Bytes], divisor: int) -> list[int]:
    """Return where each source ends in a plane that has one byte for `divisor` bytes of the sources."""
    return list(itertools.accumulate(source.size // divisor for source in sources))


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
