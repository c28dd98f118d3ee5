"""Pieces as bytes and back. Layout 1 of the parts of one piece:

`meta` int32 [4 + n]: layout version, 0 for a plain piece or 1 for a checkpoint, start, stop (tokens), then the
numbers of each state leaf in order;
`rows.G` per row group G: [members, heads, rows, dim]; `state.L.A` array A of state leaf L, where it is not None.
Bytes are little-endian.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from mlxcel.engine.layout import LAYOUT_VERSION, Layout, RowGroup, StateLeaf
from mlxcel.engine.pieces import LeafState, Piece
from mlxcel.ports import Part

NUMBERS = {"RotatingKVCache": 2, "ChunkedKVCache": 2, "ArraysCache": 0}
PLAIN, CHECKPOINT = 0, 1


def piece_parts(piece: Piece) -> list[Part]:
    """View an evaluated piece as bytes without a copy. The views keep the piece's own arrays alive, nothing else."""
    numbers = [number for state in piece.states or () for number in state.numbers]
    kind = PLAIN if piece.states is None else CHECKPOINT
    meta = np.array([LAYOUT_VERSION, kind, piece.start, piece.stop, *numbers], dtype="<i4")
    parts = [Part("meta", "int32", meta.shape, memoryview(meta.tobytes()))]
    parts += [_part(f"rows.{index}", array) for index, array in enumerate(piece.rows)]
    for leaf, state in enumerate(piece.states or ()):
        parts += [_part(f"state.{leaf}.{i}", array) for i, array in enumerate(state.arrays) if array is not None]
    return parts


def piece_from_parts(layout: Layout, parts: Sequence[Part]) -> Piece:
    """Rebuild a piece in MLX's memory (one copy). Raises ValueError when it does not fit this model's layout."""
    by_name = {part.name: part for part in parts}
    kind, start, stop, numbers = _read_meta(by_name)
    rows = tuple(
        _checked(by_name, f"rows.{index}", group.dtype, _row_shape(group, stop - start))
        for index, group in enumerate(layout.groups)
    )
    expected = {"meta", *(f"rows.{index}" for index in range(len(rows)))}
    states: tuple[LeafState, ...] | None = None
    if kind == CHECKPOINT:
        states = _read_states(layout.states, by_name, numbers)
        expected |= {name for leaf, s in enumerate(layout.states) for name in _state_names(leaf, s)}
    if set(by_name) != expected:
        raise ValueError(f"parts {sorted(set(by_name) ^ expected)} do not match the model's layers")
    piece = Piece(start, stop, rows, states)
    mx.eval(piece.arrays())
    return piece


def _read_meta(by_name: dict[str, Part]) -> tuple[int, int, int, list[int]]:
    part = by_name.get("meta")
    if part is None or part.dtype != "int32" or len(part.data) < 16 or len(part.data) % 4:
        raise ValueError("the piece has no readable meta part")
    version, kind, start, stop, *numbers = np.frombuffer(part.data, dtype="<i4").tolist()
    if version != LAYOUT_VERSION:
        raise ValueError(f"the piece has layout version {version}, this program reads {LAYOUT_VERSION}")
    if kind not in (PLAIN, CHECKPOINT) or not 0 <= start <= stop:
        raise ValueError(f"the piece's meta part is out of range: kind {kind}, rows [{start}, {stop})")
    return kind, start, stop, numbers


def _read_states(specs: Sequence[StateLeaf], by_name: dict[str, Part], numbers: list[int]) -> tuple[LeafState, ...]:
    if len(numbers) != sum(NUMBERS[spec.class_name] for spec in specs):
        raise ValueError(f"the checkpoint has {len(numbers)} state numbers, which do not fit the model's layers")
    states = []
    for leaf, spec in enumerate(specs):
        arrays: list[mx.array | None] = []
        for index, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True)):
            absent = shape is None or dtype is None
            arrays.append(None if absent else _checked(by_name, f"state.{leaf}.{index}", dtype, shape))
        used = NUMBERS[spec.class_name]
        states.append(LeafState(tuple(arrays), tuple(numbers[:used])))
        numbers = numbers[used:]
    return tuple(states)


def _state_names(leaf: int, spec: StateLeaf) -> list[str]:
    return [f"state.{leaf}.{index}" for index, shape in enumerate(spec.shapes) if shape is not None]


def _row_shape(group: RowGroup, rows: int) -> tuple[int | None, ...]:
    return len(group.members), group.heads, rows, group.dim


def _part(name: str, array: mx.array) -> Part:
    dtype = str(array.dtype).removeprefix("mlx.core.")
    if array.size == 0:
        return Part(name, dtype, tuple(array.shape), memoryview(b""))
    # bfloat16 has no numpy type, so every dtype goes through bytes; the view shares the buffer.
    raw: Any = np.asarray(mx.contiguous(array).view(mx.uint8)).reshape(-1)
    return Part(name, dtype, tuple(array.shape), memoryview(raw).toreadonly())


def _checked(by_name: dict[str, Part], name: str, dtype: Any, shape: Any) -> mx.array:
    """Return one part as an array; `dtype` an mlx dtype, `shape` a sequence of sizes, None where any size will do."""
    part = by_name.get(name)
    if part is None:
        raise ValueError(f"the piece has no part {name}")
    fits = len(part.shape) == len(shape) and all(
        want is None or have == want for have, want in zip(part.shape, shape, strict=True)
    )
    if not fits or f"mlx.core.{part.dtype}" != str(dtype):
        raise ValueError(f"part {name} is {part.dtype} {part.shape}, the model needs {dtype} {tuple(shape)}")
    if len(part.data) != prod(part.shape) * dtype.size:
        raise ValueError(f"part {name} has {len(part.data)} bytes for shape {part.shape}")
    if not len(part.data):
        return mx.zeros(part.shape, dtype)
    raw = np.frombuffer(part.data, dtype=np.uint8).reshape(*part.shape[:-1], part.shape[-1] * dtype.size)
    return mx.array(raw).view(dtype)
