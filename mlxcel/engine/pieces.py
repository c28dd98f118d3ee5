"""Detached pieces of a live cache: copied out, never aliased, installed by copy.

MLX writes caches in place. A view of a live buffer that is kept makes the next write copy the whole buffer, and a
slice keeps its parent alive; so every copy here is a real one, is evaluated at once, and no view outlives the call.
`mx.contiguous` is no copy when the slice is contiguous already (one KV head), hence `_stacked` and `detached`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxcel.engine import kinds
from mlxcel.engine.layout import Layout


@dataclass(frozen=True, slots=True)
class LeafState:
    """One `state` leaf at one position; see `kinds.read_state` for the meaning of the numbers."""

    arrays: tuple[mx.array | None, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of all growing layers and, in a checkpoint, the whole state of the others at `stop`.

    `rows`: one array per row group of the layout, [members, heads, stop - start, dim]; all arrays evaluated.
    """

    start: int
    stop: int
    rows: tuple[mx.array, ...]
    states: tuple[LeafState, ...] | None = None

    def arrays(self) -> list[mx.array]:
        """Return every array of the piece."""
        held = [array for state in self.states or () for array in state.arrays if array is not None]
        return [*self.rows, *held]

    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays())


def copy_piece(layout: Layout, layers: Sequence[Any], start: int, stop: int, with_state: bool) -> Piece:
    """Copy rows [start, stop) (positions, in tokens) and, for a checkpoint, the state at the cache's present end."""
    leaves = [leaf for _, leaf in kinds.leaves(layers)]
    rows = []
    for group in layout.groups:
        views = [kinds.row_tensors(leaves[leaf])[tensor][0, :, start:stop] for leaf, tensor in group.members]
        rows.append(_stacked(views))
    states = None
    if with_state:
        states = tuple(_copy_state(leaves[spec.leaf]) for spec in layout.states)
    piece = Piece(start, stop, tuple(rows), states)
    mx.eval(piece.arrays())
    return piece


def cut_checkpoint(piece: Piece, length: int) -> Piece:
    """Return a checkpoint as it would have been at `length` tokens; see `kinds.cuttable`. Copies what it holds."""
    assert piece.states is not None, "a piece without state is cut by rows"
    assert 0 < length <= piece.stop, f"a checkpoint of {piece.stop} tokens, cut at {length}"
    states = []
    for state in piece.states:
        views, numbers = kinds.cut_state(state.arrays, state.numbers, length)
        states.append(LeafState(tuple(detached(view) for view in views), tuple(numbers)))
    start = min(piece.start, length)
    rows = tuple(detached(array[:, :, : length - start]) for array in piece.rows)
    cut = Piece(start, length, rows, tuple(states))
    mx.eval(cut.arrays())
    return cut


def assemble(
    layout: Layout,
    fresh: Sequence[Any],
    runs: Sequence[tuple[Piece, int, int]],
    checkpoint: Piece | None,
    reserve_tokens: int,
) -> int:
    """Fill a fresh cache with runs of rows and an optional checkpoint; returns the tokens it then covers.

    A run is (piece, first, last): rows [first, last) counted from the piece's own first row. Runs must follow each
    other without a gap, the checkpoint's rows last. Buffers get room for `reserve_tokens` tokens
    in all, so that going on to that length allocates nothing.
    """
    if checkpoint is not None:
        assert checkpoint.states is not None, "a checkpoint holds the state of the layers that can't be cut"
        runs = [*runs, (checkpoint, 0, checkpoint.stop - checkpoint.start)]
    total = _check_runs(runs)
    assert not (layout.states and total and checkpoint is None), "a model with state needs a checkpoint"
    leaves = [leaf for _, leaf in kinds.leaves(fresh)]
    if total:
        _install_rows(layout, leaves, [run for run in runs if run[2] > run[1]], total, reserve_tokens)
    if checkpoint is not None and checkpoint.states is not None:
        for spec, state in zip(layout.states, checkpoint.states, strict=True):
            arrays = [None if array is None else detached(array) for array in state.arrays]
            kinds.write_state(leaves[spec.leaf], arrays, state.numbers)
    mx.eval([array for leaf in leaves for array in kinds.arrays_of(leaf)])
    return total


def _check_runs(runs: Sequence[tuple[Piece, int, int]]) -> int:
    position = 0
    for piece, first, last in runs:
        assert 0 <= first <= last <= piece.stop - piece.start, f"run [{first}, {last}) is outside its piece"
        assert piece.start + first == position, f"run starts at {piece.start + first}, rows end at {position}"
        position = piece.start + last
    return position


def _install_rows(
    layout: Layout, leaves: Sequence[Any], runs: Sequence[tuple[Piece, int, int]], total: int, reserve_tokens: int
) -> None:
    tensors: dict[int, dict[int, mx.array]] = {}
    for number, group in enumerate(layout.groups):
        capacity = kinds.row_capacity(leaves[group.members[0][0]], total, reserve_tokens)
        room = mx.zeros((group.heads, capacity - total, group.dim), group.dtype)
        for member, (leaf, tensor) in enumerate(group.members):
            cuts = [piece.rows[number][member, :, first:last] for piece, first, last in runs]
            whole = mx.concatenate([*cuts, room], axis=1) if capacity > total else _stacked([_joined(cuts)])[0]
            tensors.setdefault(leaf, {})[tensor] = whole[None]
    for leaf, by_index in tensors.items():
        kinds.install_rows(leaves[leaf], [by_index[index] for index in sorted(by_index)], total)


def _joined(cuts: Sequence[mx.array]) -> mx.array:
    return mx.concatenate(list(cuts), axis=1)


def _copy_state(leaf: Any) -> LeafState:
    arrays, numbers = kinds.read_state(leaf)
    return LeafState(tuple(None if array is None else detached(array) for array in arrays), numbers)


def _stacked(views: Sequence[mx.array]) -> mx.array:
    """Return a new [len(views), heads, rows, dim] buffer. Stacking copies; one view alone is copied in two halves."""
    return mx.stack(list(views)) if len(views) > 1 else detached(views[0])[None]


def detached(array: mx.array) -> mx.array:
    """Return a copy that shares no buffer: a concatenation of two halves always writes a new one."""
    flat = array.reshape(-1)
    if flat.size < 2:
        return mx.contiguous(array)
    half = flat.size // 2
    return mx.concatenate([flat[:half], flat[half:]]).reshape(array.shape)
