"""What each cache object is, asked of the object and never of the model's name.

`rows` leaves grow by one row a token and can be cut anywhere. `state` leaves are whole at one position only.
`unknown` leaves can't be kept: subclasses count as unknown, since they may store something else.
Classes are those of mlx-lm 0.32.2, `mlx_lm/models/cache.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

Kind = Literal["rows", "state", "unknown"]
Path = tuple[int, ...]

ROWS = (KVCache, ConcatenateKVCache, QuantizedKVCache)
STATE = (RotatingKVCache, ChunkedKVCache, ArraysCache)
MERGEABLE = (KVCache, RotatingKVCache, ArraysCache)


def class_name(cache: Any) -> str:
    """Return the class of one layer's cache; a list shows what it holds, as `CacheList(ArraysCache,KVCache)`."""
    if type(cache) is CacheList:
        return f"CacheList({','.join(class_name(inner) for inner in cache.caches)})"
    return type(cache).__name__


def leaves(layers: Sequence[Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, object) of every cache that is not a list of caches, depth first."""
    for index, cache in enumerate(layers):
        path = (*prefix, index)
        if type(cache) is CacheList:
            yield from leaves(cache.caches, path)
        else:
            yield path, cache


def kind_of(cache: Any) -> Kind:
    """Return how this object can be kept; the exact class decides."""
    if type(cache) in ROWS:
        return "rows"
    return "state" if type(cache) in STATE else "unknown"


def merge_refusal(cache: Any) -> str:
    """Return why this object can't decode in a batch, or an empty string."""
    if type(cache) not in MERGEABLE:
        return f"{class_name(cache)} can't be merged into a batch"
    if type(cache) is RotatingKVCache and cache.keep:
        return "RotatingKVCache with kept first tokens loses them when merged into a batch"
    return ""


def is_empty(cache: Any) -> bool:
    """Return whether the model has not written to this cache."""
    if type(cache) is ArraysCache:
        return all(array is None for array in cache.cache)
    return cache.keys is None


def length_of(cache: Any) -> int | None:
    """Return the tokens this cache covers, or None where the object doesn't know (recurrent state)."""
    return None if type(cache) is ArraysCache else int(cache.offset)


def arrays_of(cache: Any) -> list[mx.array]:
    """Return every array of one leaf, for evaluation and for counting bytes."""
    if type(cache) is ArraysCache:
        return [array for array in (*cache.cache, cache.left_padding, cache.lengths) if array is not None]
    if kind_of(cache) == "unknown":
        return _arrays_in(cache.state)
    return [] if cache.keys is None else _arrays_in((cache.keys, cache.values))


def lay_out(cache: Any) -> None:
    """Make recurrent state row-contiguous (no copy where it is already)."""
    if type(cache) is ArraysCache:
        cache.cache = [None if array is None else mx.contiguous(array) for array in cache.cache]


def _arrays_in(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [array for item in items for array in _arrays_in(item)]


def row_tensors(cache: Any) -> tuple[mx.array, ...]:
    """Return the buffers of a `rows` leaf, each [1, heads, capacity, dim]; quantised ones are data, scales, biases."""
    if type(cache) is QuantizedKVCache:
        return (*cache.keys, *cache.values)
    return cache.keys, cache.values


def install_rows(cache: Any, tensors: Sequence[mx.array], length: int) -> None:
    """Put buffers of the layout of `row_tensors` into a fresh `rows` leaf that then covers `length` tokens."""
    if type(cache) is QuantizedKVCache:
        cache.keys, cache.values = tuple(tensors[:3]), tuple(tensors[3:])
    else:
        cache.keys, cache.values = tensors
    cache.offset = length


def row_capacity(cache: Any, tokens: int, reserve_tokens: int) -> int:
    """Return how many rows to allocate for `tokens` and up to `reserve_tokens` in all (whole steps of the class)."""
    if type(cache) is ConcatenateKVCache:
        return tokens
    return -(-max(tokens + 1, reserve_tokens) // cache.step) * cache.step


def read_state(cache: Any) -> tuple[tuple[mx.array | None, ...], tuple[int, ...]]:
    """Return the arrays and numbers that make a `state` leaf: views, to be copied by the caller.

    A window comes in temporal order, at most `max_size` rows: the class drops older ones before the next token
    anyway. Numbers: window (offset, place in the ring), chunk (offset, start position), arrays ().
    """
    if type(cache) is ArraysCache:
        batched = cache.left_padding is not None or cache.lengths is not None
        assert not batched, "state of a batched cache can't be kept"
        return tuple(cache.cache), ()
    if type(cache) is ChunkedKVCache:
        keys, values = cache.keys_and_values()
        return (keys, values), (cache.offset, cache.start_position)
    keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    if not cache.keep:
        keys, values = keys[..., -cache.max_size :, :], values[..., -cache.max_size :, :]
    wrapped = cache._idx < min(cache.offset, cache.max_size)
    return (keys, values), (cache.offset, cache._idx if wrapped else keys.shape[2])


def cuttable(cache: Any) -> bool:
    """Return whether a `state` leaf still holds the rows of all positions from 0: a window or chunk not yet full."""
    if type(cache) is ChunkedKVCache:
        return cache.start_position == 0
    if type(cache) is not RotatingKVCache or cache.offset > cache.max_size:
        return False
    keys = read_state(cache)[0][0]
    return keys is not None and keys.shape[2] == cache.offset


def cut_state(
    arrays: Sequence[mx.array | None], numbers: Sequence[int], length: int
) -> tuple[list[mx.array], list[int]]:
    """Cut what `read_state` gave of a `cuttable` leaf down to `length` tokens: views and numbers."""
    assert len(numbers) == 2, "a recurrent state can't be cut"
    rows = [array for array in arrays if array is not None]
    held = {array.shape[2] for array in rows}
    assert held == {numbers[0]}, f"{held} rows of {numbers[0]} tokens: the window has wrapped"
    assert length <= numbers[0], f"{length} of {numbers[0]} tokens"
    # A window's second number is its place in the ring, the end of its rows; a chunk's is its first position.
    return [array[..., :length, :] for array in rows], [length, length if numbers[1] else 0]


def write_state(cache: Any, arrays: Sequence[mx.array | None], numbers: Sequence[int]) -> None:
    """Put what `read_state` returned (copied) into a fresh leaf of the same class."""
    if type(cache) is ArraysCache:
        cache.cache = list(arrays)
        return
    cache.keys, cache.values = arrays
    if type(cache) is ChunkedKVCache:
        cache.offset, cache.start_position = numbers
    else:
        cache.offset, cache._idx = numbers
        cache.keys, cache.values = _ring_order(cache, cache.keys), _ring_order(cache, cache.values)


def _ring_order(cache: Any, rows: mx.array) -> mx.array:
    """Turn temporal order back into the ring's: attention sums in ring order, and a hit must give the same bits."""
    assert cache.keep <= cache._idx <= rows.shape[2], "the place in the ring is outside the window"
    cut = cache.keep + rows.shape[2] - cache._idx
    if cut == cache.keep:
        return rows
    return mx.concatenate([rows[..., : cache.keep, :], rows[..., cut:, :], rows[..., cache.keep : cut, :]], axis=2)
