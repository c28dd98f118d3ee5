"""The shape of one model's caches, learnt by running a few tokens through it.

The probe tells shapes, dtypes and which caches the model really writes, so nothing is guessed from the config.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from mlxcel.engine import kinds

LAYOUT_VERSION = 1


@dataclass(frozen=True)
class RowGroup:
    """Row tensors of equal heads, dim and dtype, stacked in one array [members, heads, rows, dim].

    One big array per group, since the byte coder and the disk do better on megabytes than on kilobytes.
    `members` are (leaf number, tensor number in the leaf).
    """

    heads: int
    dim: int
    dtype: mx.Dtype
    members: tuple[tuple[int, int], ...]

    def row_bytes(self) -> int:
        return len(self.members) * self.heads * self.dim * self.dtype.size


@dataclass(frozen=True)
class StateLeaf:
    """A leaf kept whole. `shapes` and `dtypes` per array; a None dimension may differ from position to position."""

    leaf: int
    class_name: str
    shapes: tuple[tuple[int | None, ...] | None, ...]
    dtypes: tuple[mx.Dtype | None, ...]


@dataclass(frozen=True)
class Layout:
    """Everything about the caches that pieces depend on."""

    classes: tuple[str, ...]  # per layer
    leaf_kinds: tuple[tuple[kinds.Path, kinds.Kind, str, bool], ...]  # path, kind, class, written by the model
    groups: tuple[RowGroup, ...]
    states: tuple[StateLeaf, ...]
    description: str  # canonical text, for the fingerprint

    @property
    def bytes_per_token(self) -> int:
        return sum(group.row_bytes() for group in self.groups)

    def reuse(self) -> tuple[Literal["prefix", "snapshot", "none"], str]:
        """Return how prefixes can be reused and, for `none`, the class that can't be kept."""
        unknown = [name for _, kind, name, _ in self.leaf_kinds if kind == "unknown"]
        if unknown:
            return "none", f"cache class {unknown[0]} is not known, so it can't be kept"
        if not self.groups and not self.states:
            return "none", "the model keeps no cache"
        return ("snapshot" if self.states else "prefix"), ""

    def unwritten(self) -> str:
        """Return the class of a cache that the model leaves wholly or partly unused, or "".

        mlx-lm's batch classes fail on such caches when a row is merged or taken out.
        """
        unused = [name for _, _, name, used in self.leaf_kinds if not used]
        partly = [state.class_name for state in self.states if None in state.shapes]
        return next(iter((*unused, *partly)), "")

    def written(self, layers: Sequence[Any]) -> list[Any]:
        """Return the leaf objects that the model writes, in order."""
        leaves = [leaf for _, leaf in kinds.leaves(layers)]
        return [leaf for leaf, (_, _, _, used) in zip(leaves, self.leaf_kinds, strict=True) if used]


def learn_layout(probed: Sequence[Any]) -> Layout:
    """Read the layout off a cache that has seen at least two tokens."""
    found = list(kinds.leaves(probed))
    leaf_kinds = []
    grouped: dict[tuple[int, int, mx.Dtype], list[tuple[int, int]]] = {}
    states = []
    for number, (path, leaf) in enumerate(found):
        kind = kinds.kind_of(leaf)
        used = kind == "unknown" or not kinds.is_empty(leaf)
        leaf_kinds.append((path, kind, kinds.class_name(leaf), used))
        if kind == "rows" and used:
            for index, tensor in enumerate(kinds.row_tensors(leaf)):
                grouped.setdefault((tensor.shape[1], tensor.shape[3], tensor.dtype), []).append((number, index))
        elif kind == "state" and used:
            states.append(_state_leaf(number, leaf))
    groups = tuple(RowGroup(heads, dim, dtype, tuple(m)) for (heads, dim, dtype), m in grouped.items())
    classes = tuple(kinds.class_name(cache) for cache in probed)
    text = _describe(found, leaf_kinds, groups, states)
    return Layout(classes, tuple(leaf_kinds), groups, tuple(states), text)


def _state_leaf(number: int, leaf: Any) -> StateLeaf:
    arrays, _ = kinds.read_state(leaf)
    windowed = kinds.length_of(leaf) is not None
    shapes = tuple(
        None if array is None else tuple(None if windowed and axis == 2 else n for axis, n in enumerate(array.shape))
        for array in arrays
    )
    dtypes = tuple(None if array is None else array.dtype for array in arrays)
    return StateLeaf(number, kinds.class_name(leaf), shapes, dtypes)


def _describe(
    found: Sequence[tuple[kinds.Path, Any]],
    leaf_kinds: Sequence[tuple[kinds.Path, kinds.Kind, str, bool]],
    groups: Sequence[RowGroup],
    states: Sequence[StateLeaf],
) -> str:
    lines = [f"layout {LAYOUT_VERSION}"]
    for (path, leaf), (_, kind, name, used) in zip(found, leaf_kinds, strict=True):
        window = (leaf.max_size, leaf.keep) if type(leaf) is RotatingKVCache else ()
        extra = tuple(getattr(leaf, key) for key in ("group_size", "bits", "chunk_size") if hasattr(leaf, key))
        lines.append(f"{path} {kind} {name} {used} {window} {extra}")
    lines += [f"{group.heads} {group.dim} {group.dtype} {group.members}" for group in groups]
    lines += [f"{state.leaf} {state.shapes} {[str(dtype) for dtype in state.dtypes]}" for state in states]
    return "\n".join(lines)
