"""The zstd coders, one set per thread, and scratch memory that is used again.

"Huffman only": zstd with its match finder turned nearly off. On an exponent plane level 1 finds false matches; without
them the frame is smaller and twice as fast to make. The frames are standard zstd. Parameters and measurements: the
project's compression study of KV (bf16 1.475 x, ceiling of any order-0 coder about 1.50).
"""

import threading
from collections.abc import Sequence

import numpy as np
import zstandard

from storage.codec.planes import Bytes

_KEEP_SCRATCH_BYTES = 64 << 20
_LEAST_BLOCK_BYTES = 16 << 10


class FrameBroken(Exception):
    """A zstd frame that is not what our header promised; the reason is the message."""


class _PerThread(threading.local):
    """zstd contexts may not be shared by threads that run at once."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            min_match=7,
            hash_log=6,
            chain_log=6,
            window_log=17,
            search_log=1,
            write_content_size=True,
        )
        self.huffman = zstandard.ZstdCompressor(compression_params=parameters)
        self.level1 = zstandard.ZstdCompressor(level=1, write_content_size=True)
        self.decoder = zstandard.ZstdDecompressor()
        self.scratch: Bytes = np.empty(0, np.uint8)


_mine = _PerThread()


def scratch(nbytes: int) -> Bytes:
    """Return `nbytes` of this thread's scratch memory (its content is whatever the last use left).

    Fresh pages cost more than the coding itself, so a buffer of up to 64 MiB is kept per thread.
    """
    if nbytes > _KEEP_SCRATCH_BYTES:
        return np.empty(nbytes, np.uint8)
    if _mine.scratch.size < nbytes:
        _mine.scratch = np.empty(nbytes, np.uint8)
    return _mine.scratch[:nbytes]


def compress_huffman(plane: Bytes, ends: Sequence[int]) -> bytes:
    """Code a plane of bytes by their frequencies alone; `ends` as for `compress_level1`."""
    return _compress(_mine.huffman, plane, ends)


def compress_level1(data: Bytes, ends: Sequence[int]) -> bytes:
    """Code with zstd level 1. `ends`: offsets at which one tensor ends and another begins, the last one data's size."""
    return _compress(_mine.level1, data, ends)


def _compress(compressor: zstandard.ZstdCompressor, data: Bytes, ends: Sequence[int]) -> bytes:
    """Make one frame in which no block reaches over the end of a tensor.

    zstd has a Huffman table a block (up to 128 KiB). Keys and values differ in their exponents, so a block with some of
    both codes worse: on real KV 1.459 against 1.476 for bfloat16, 1.160 against 1.173 for float16. Tensors under 16 KiB
    share blocks, since a table costs about 100 bytes.
    """
    coder = compressor.compressobj(size=data.size)
    pieces: list[bytes] = []
    start = 0
    for end in ends:
        if end - start >= _LEAST_BLOCK_BYTES and end < data.size:
            pieces.append(coder.compress(data[start:end].data))
            pieces.append(coder.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            start = end
    pieces.append(coder.compress(data[start:].data))
    pieces.append(coder.flush())
    return b"".join(pieces)


def decompress_into(frame: memoryview, out: Bytes) -> None:
    """Decompress exactly one frame into `out`, which it must fill exactly. Raises FrameBroken.

    The size in the frame is compared with ours before anything is decompressed, so a frame that claims a terabyte
    allocates nothing; a frame without a size, a cut one and two joined ones are refused too.
    """
    try:
        claimed = zstandard.frame_content_size(frame)
        if claimed != out.size:
            raise FrameBroken(f"a zstd frame claims {claimed} bytes where {out.size} belong")
        with _mine.decoder.stream_reader(frame, read_across_frames=False, closefd=False) as reader:
            got = reader.readinto(out.data) if out.size else 0
            rest = reader.read(1) if got == out.size else b""
    except (zstandard.ZstdError, MemoryError) as error:
        raise FrameBroken(f"a zstd frame can't be read: {error}") from error
    if got != out.size or rest:
        raise FrameBroken(f"a zstd frame gives {got} bytes where {out.size} belong")
