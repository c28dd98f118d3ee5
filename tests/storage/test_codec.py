"""The codec: lossless for every dtype and shape, and nothing damaged gets through."""

import math
import threading
import tracemalloc

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.ports import Part
from storage.codec import coder, groups, piece
from storage.codec.dtypes import ITEM_BYTES
from storage.codec.measure import gaussian_parts, measure
from storage.errors import StoredPieceCorrupt
from tests.storage.doubles import key_of, plain, some_parts

KEY = key_of(7)


@st.composite
def parts_of_any_dtype(draw: st.DrawFn) -> list[Part]:
    parts = []
    for index in range(draw(st.integers(0, 6))):
        dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
        seed = draw(st.integers(0, 2**32 - 1))
        compressible = draw(st.booleans())
        data = np.random.default_rng(seed).integers(0, 4 if compressible else 256, nbytes, np.uint8).tobytes()
        parts.append(Part(f"p{index}", dtype, shape, data))
    return parts


@settings(max_examples=150, deadline=None)
@given(parts_of_any_dtype())
def test_what_is_decoded_is_what_was_encoded(parts: list[Part]) -> None:
    """Names, dtypes, shapes and every byte come back, for empty, scalar and mixed pieces of any content."""
    assert plain(piece.decode(KEY, piece.encode(KEY, parts).data)) == plain(parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "uint32"])
@pytest.mark.parametrize("tokens", [1, 3, 255, 2_048])
def test_kv_like_pieces_are_lossless_at_any_length(dtype: str, tokens: int) -> None:
    """Pieces around and over the block size of the plane split come back exactly."""
    parts = gaussian_parts(dtype, tokens, 2, 64, 3, seed=tokens)
    assert plain(piece.decode(KEY, piece.encode(KEY, parts).data)) == plain(parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_special_values_survive(dtype: str) -> None:
    """NaN payloads, infinities, subnormals and both zeros keep their bits."""
    words = np.arange(1 << 16, dtype=np.uint16)
    data = words.tobytes() if dtype != "float32" else (words.astype(np.uint32) << 16 | words).astype("<u4").tobytes()
    parts = [Part("all", dtype, (1 << 16,), data)]
    assert plain(piece.decode(KEY, piece.encode(KEY, parts).data)) == plain(parts)


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 1.44), ("float16", 1.13), ("float32", 1.17)])
def test_ratio_on_kv_like_values(dtype: str, least: float) -> None:
    """Normal values with a scale per channel code to within a few per cent of the entropy of their exponents."""
    figures = measure(gaussian_parts(dtype, 256, 3, 64, 16, seed=1), repeats=1)
    assert figures.ratio >= least
    assert figures.ratio > figures.zstd1_ratio + 0.06


def test_tensors_with_other_scales_do_not_spoil_each_other() -> None:
    """Keys and values by turns code nearly as well as each kind alone, since no block holds some of both."""
    keys = gaussian_parts("bfloat16", 256, 3, 64, 4, seed=1)
    values = [
        Part(part.name, part.dtype, part.shape, (np.frombuffer(part.data, np.uint16) - (5 << 7)).tobytes())
        for part in gaussian_parts("bfloat16", 256, 3, 64, 4, seed=2)
    ]
    mixed = [part for pair in zip(keys, values, strict=True) for part in pair]
    alone = len(piece.encode(KEY, keys).data) + len(piece.encode(KEY, values).data)
    assert len(piece.encode(KEY, mixed).data) < 1.003 * alone


def test_noise_is_stored_as_it_is() -> None:
    """Bytes without redundancy are kept raw and cost the header only."""
    data = np.random.default_rng(3).integers(0, 256, 1 << 20, np.uint8).tobytes()
    for dtype in ("uint8", "float32", "bfloat16"):
        part = Part("noise", dtype, ((1 << 20) // ITEM_BYTES[dtype],), data)
        encoded = piece.encode(KEY, [part])
        assert len(encoded.data) < len(data) + 200
        assert plain(piece.decode(KEY, encoded.data)) == plain([part])


def test_buffers_of_any_kind_and_alignment_are_accepted() -> None:
    """bytes, bytearray, and read-only views at odd addresses encode to the same piece."""
    parts = some_parts(1, 500, "bfloat16")
    shifted = [
        Part(part.name, part.dtype, part.shape, memoryview(b"x" + bytes(part.data))[1:].toreadonly()) for part in parts
    ]
    arrays = [Part(part.name, part.dtype, part.shape, bytearray(part.data)) for part in parts]
    expected = bytes(piece.encode(KEY, parts).data)
    assert bytes(piece.encode(KEY, shifted).data) == expected
    assert bytes(piece.encode(KEY, arrays).data) == expected


def test_wrong_sizes_and_dtypes_are_refused_when_encoding() -> None:
    """A part whose bytes don't fit its shape, or of an unknown dtype, is a ValueError that names it."""
    with pytest.raises(ValueError, match="'k'"):
        piece.encode(KEY, [Part("k", "float32", (3,), bytes(8))])
    with pytest.raises(ValueError, match="float8"):
        piece.encode(KEY, [Part("k", "float8", (3,), bytes(3))])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_byte_flipped_is_found(dtype: str) -> None:
    """Any flipped byte of a stored piece is StoredPieceCorrupt."""
    stored = bytes(piece.encode(KEY, some_parts(2, 200, dtype)).data)
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 0x10
        with pytest.raises(StoredPieceCorrupt):
            piece.decode(KEY, damaged)


def test_every_truncation_and_any_extension_is_found() -> None:
    """Any proper prefix of a stored piece, and one with bytes appended, is StoredPieceCorrupt."""
    stored = bytes(piece.encode(KEY, some_parts(2, 60)).data)
    for length in range(len(stored)):
        with pytest.raises(StoredPieceCorrupt):
            piece.decode(KEY, stored[:length])
    for longer in (stored + b"\0", stored + stored):
        with pytest.raises(StoredPieceCorrupt):
            piece.decode(KEY, longer)


def test_a_piece_under_another_key_is_found() -> None:
    """A whole piece that lies under a key it was not encoded for is StoredPieceCorrupt and names that key."""
    stored = piece.encode(KEY, some_parts(2)).data
    with pytest.raises(StoredPieceCorrupt) as caught:
        piece.decode(key_of(8), stored)
    assert caught.value.key == key_of(8)


def resealed(parts: list[Part], change: "object") -> bytes:
    """Encode, let `change` alter the header and payload, and seal the result with a right checksum."""
    stored = bytes(piece.encode(KEY, parts).data)
    length = piece.PRELUDE.unpack_from(stored)[4]
    header = msgspec.msgpack.decode(stored[piece.PRELUDE.size : piece.PRELUDE.size + length])
    header, payload = change(header, stored[piece.PRELUDE.size + length :])  # type: ignore[operator]
    packed = msgspec.msgpack.encode(header)
    whole = bytearray(
        piece.PRELUDE.pack(piece.MAGIC, bytes(16), 1, 0, len(packed), piece.PRELUDE.size + len(packed) + len(payload))
        + packed
        + payload
    )
    whole[4:20] = piece._checksum(KEY, memoryview(whole))
    return bytes(whole)


BOMB = bytes.fromhex("28b52ffde06c06060663636363")


def streamed(data: bytes) -> bytes:
    coding = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return coding.compress(data) + coding.flush()


@pytest.mark.parametrize(
    "frame",
    [
        BOMB,
        b"",
        zstandard.compress(b""),
        zstandard.compress(bytes(399)),
        zstandard.compress(bytes(400))[:-3],
        zstandard.compress(bytes(400)) * 2,
        zstandard.compress(bytes(200)) * 2,
        streamed(bytes(400)),
        b"not a frame at all",
    ],
    ids=["terabyte", "nothing", "empty", "short", "cut", "joined", "two-halves", "no-size", "garbage"],
)
def test_frames_that_lie_are_refused_even_with_a_right_checksum(frame: bytes) -> None:
    """A frame whose size is not what our header says is refused before memory is taken, whoever sealed it."""

    def replace(header: list, payload: bytes) -> tuple[list, bytes]:  # type: ignore[type-arg]
        header[1][0][3] = len(frame)
        return header, frame

    stored = resealed([Part("z", "uint8", (400,), bytes(400))], replace)
    tracemalloc.start()
    with pytest.raises(StoredPieceCorrupt):
        piece.decode(KEY, stored)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "change",
    [
        lambda h, p: ([h[0], [["uint8", "zstd", 1 << 45, h[1][0][3]]]], p),
        lambda h, p: ([[["z", "uint8", [1 << 45]]], [["uint8", "zstd", 1 << 45, h[1][0][3]]]], p),
        lambda h, p: ([[["z", "uint8", [-400]]], h[1]], p),
        lambda h, p: ([[["z", "float8", [400]]], h[1]], p),
        lambda h, p: ([h[0], h[1] * 2], p * 2),
        lambda h, p: ([h[0], []], p),
        lambda h, p: ([h[0], [["uint8", "raw", 400, h[1][0][3]]]], p),
        lambda h, p: ([h[0], [["uint8", "planes2", 400, h[1][0][3]]]], p),
        lambda h, p: ([h[0], [["uint8", "lzma", 400, h[1][0][3]]]], p),
        lambda h, p: ({"parts": 1}, p),
        lambda h, p: (h, p + b"x"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(change: object) -> None:
    """A sealed header with impossible sizes, dtypes or codings is StoredPieceCorrupt and nothing else."""
    with pytest.raises(StoredPieceCorrupt):
        piece.decode(KEY, resealed([Part("z", "uint8", (400,), bytes(400))], change))


def test_a_newer_codec_version_is_refused() -> None:
    """A piece of an unknown codec version is refused by that reason."""
    stored = bytearray(piece.encode(KEY, some_parts(1)).data)
    stored[20] = 9
    stored[4:20] = piece._checksum(KEY, memoryview(stored))
    with pytest.raises(StoredPieceCorrupt, match="version 9"):
        piece.decode(KEY, stored)


def test_threads_do_not_share_scratch() -> None:
    """Pieces of different sizes encoded and decoded on four threads at once all come back right."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        for round_ in range(10):
            parts = gaussian_parts("bfloat16", 16 + 40 * ((seed + round_) % 5), 2, 64, 4, seed * 100 + round_)
            if plain(piece.decode(KEY, piece.encode(KEY, parts).data)) != plain(parts):
                wrong.append(f"{seed}/{round_}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_decoded_data_are_read_only_and_not_scratch() -> None:
    """Decoded parts can't be written to and do not change when the same thread codes something else."""
    parts = some_parts(1, 1_000, "bfloat16")
    decoded = piece.decode(KEY, piece.encode(KEY, parts).data)
    piece.decode(KEY, piece.encode(KEY, some_parts(2, 1_000, "bfloat16")).data)
    assert plain(decoded) == plain(parts)
    with pytest.raises(TypeError):
        decoded[0].data[0] = 1


def test_group_of_zero_bytes() -> None:
    """A group without a byte is stored raw and decodes to nothing."""
    coding, stored = groups.encode("bfloat16", [np.empty(0, np.uint8)])
    assert coding == "raw"
    assert sum(buffer.size for buffer in stored) == 0
    with pytest.raises(coder.FrameBroken):
        coder.decompress_into(memoryview(b""), np.empty(0, np.uint8))


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 2), ("float32", 4 / 3), ("uint8", 32768)])
def test_a_piece_that_claims_more_than_its_bytes_can_hold_takes_no_memory(dtype: str, most: float) -> None:
    """Sizes beyond what a coding can expand to, or beyond the reader's bound, are refused before anything is allocated."""
    source = b"\0" * 400_000 if dtype == "uint8" else bytes(some_parts(1, 100_000, dtype)[0].data)
    width = {"bfloat16": 2, "float32": 4, "uint8": 1}[dtype]
    part = Part("k", dtype, (len(source) // width,), memoryview(source))
    data = piece.encode(KEY, [part]).data
    for factor in (most, 1e5):

        def lie(header: list, payload: bytes, factor: float = factor) -> tuple[list, bytes]:  # type: ignore[type-arg]
            _, coding, _, stored = header[1][0]
            items = int(factor * stored) // width + 1
            return [[["k", dtype, [items]]], [[dtype, coding, items * width, stored]]], payload

        with pytest.raises(StoredPieceCorrupt, match=r"can't hold|contradict"):
            piece.decode(KEY, resealed([part], lie))
    with pytest.raises(StoredPieceCorrupt, match="contradict"):
        piece.decode(KEY, data, max_raw_bytes=len(source) - 1)
    assert plain(piece.decode(KEY, data, max_raw_bytes=len(source))) == plain([part])
