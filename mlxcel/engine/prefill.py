"""One sequence, one chunk at a time, on plain caches."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxcel.engine import kinds


def prefill_chunk(model: Any, layers: Sequence[Any], token_ids: Sequence[int]) -> None:
    """Run a chunk through the model and evaluate the caches. The logits are never computed: nothing asks for them."""
    model(mx.array(list(token_ids), dtype=mx.uint32)[None], cache=layers)
    evaluate(layers)
    mx.clear_cache()


def lay_out(layers: Sequence[Any]) -> None:
    """Make recurrent state plain contiguous arrays, evaluated later."""
    for _, leaf in kinds.leaves(layers):
        kinds.lay_out(leaf)


def evaluate(layers: Sequence[Any]) -> None:
    """Evaluate all caches, recurrent state as plain contiguous arrays: a matrix product reads transposed ones in another
    order, and a restored state, which is always contiguous, must go on to the same bits as a live one."""
    lay_out(layers)
    mx.eval([array for _, leaf in kinds.leaves(layers) for array in kinds.arrays_of(leaf)])
