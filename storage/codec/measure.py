"""Measuring the codec against plain zstd level 1 on the same bytes, for benchmarks."""

import time
from collections.abc import Callable

import msgspec
import numpy as np
import zstandard

from mlxcel.ports import Part
from storage.codec.dtypes import item_bytes
from storage.codec.piece import decode, encode


class CodecFigures(msgspec.Struct, frozen=True):
    """Rates in bytes of raw KV a second, one thread, best of the repeats."""

    dtype: str
    raw_bytes: int
    ratio: float
    encode_bytes_s: float
    decode_bytes_s: float
    zstd1_ratio: float
    zstd1_encode_bytes_s: float
    zstd1_decode_bytes_s: float


def gaussian_parts(dtype: str, tokens: int, heads: int, width: int, tensors: int, seed: int) -> list[Part]:
    """Make tensors shaped like KV, (1, heads, tokens, width): normal, each channel with a scale of its own."""
    random = np.random.default_rng(seed)
    parts = []
    for index in range(tensors):
        scale = np.exp(0.6 * random.standard_normal((1, heads, 1, width))).astype(np.float32)
        values = random.standard_normal((1, heads, tokens, width), dtype=np.float32) * scale
        parts.append(Part(f"kv{index}", dtype, values.shape, _as_bytes(values, dtype)))
    return parts


def measure(parts: list[Part], repeats: int = 5) -> CodecFigures:
    """Time encoding and decoding of `parts` (one dtype) and the same with plain zstd level 1, by turns."""
    key = bytes(32)
    raw = b"".join(part.data for part in parts)
    level1, decoder = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    stored, plain = encode(key, parts).data, level1.compress(raw)
    jobs: list[Callable[[], object]] = [
        lambda: encode(key, parts),
        lambda: decode(key, stored),
        lambda: level1.compress(raw),
        lambda: decoder.decompress(plain),
    ]
    best = [float("inf")] * len(jobs)
    for _ in range(repeats):
        for index, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[index] = min(best[index], time.perf_counter() - start)
    rates = [len(raw) / seconds for seconds in best]
    return CodecFigures(
        parts[0].dtype, len(raw), len(raw) / len(stored), rates[0], rates[1], len(raw) / len(plain), rates[2], rates[3]
    )


def _as_bytes(values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", dtype: str) -> bytes:
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if dtype == "float16":
        return values.astype(np.float16).tobytes()
    if dtype == "float32":
        return values.tobytes()
    if item_bytes(dtype) == 4:
        return (values.view(np.uint32) & 0x0F0F0F0F).tobytes()
    raise ValueError(f"no test data for dtype {dtype!r}")
