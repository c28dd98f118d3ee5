"""Does a model decode rows of unequal length together as it decodes them alone? Asked of the model, not of its name.

Some architectures of mlx-lm 0.32.2 read one row's position for the whole batch and then give wrong tokens without any
error. Three short rows show it: a wrong position changes the answer wholly, rounding hardly at all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxcel.engine import prefill
from mlxcel.engine.known import NO_BATCH, module_name
from mlxcel.engine.lanes import BatchedLane, Lane, RowStart, fault_text
from mlxcel.engine.sequential import SequentialLane

ROWS = ((3, 5, 7), tuple(range(11, 41)), (41, 43, 47, 53, 59))  # token ids, small enough for any vocabulary
STEPS = 3  # the first is computed before rows are joined
MOST = 0.1  # of the spread of the log-probabilities; rounding of 4-bit weights in bfloat16 is about a fifth of that


def batch_fault(model: Any, new_layers: Callable[[], list[Any]]) -> str:
    """Return why rows can't decode together, or an empty string."""
    if why := NO_BATCH.get(module_name(model)):
        return why
    alone = [_decode(SequentialLane(model), model, new_layers, [row])[0] for row in ROWS]
    try:
        together = _decode(BatchedLane(model), model, new_layers, ROWS)
    except Exception as error:
        return f"rows of unequal length can't be joined: {fault_text(error)}"
    far = max(
        _distance(a, b) for one, other in zip(alone, together, strict=True) for a, b in zip(one, other, strict=True)
    )
    return "" if far <= MOST else f"rows of unequal length decode to other tokens together than alone (by {far:.2f})"


def _decode(
    lane: Lane, model: Any, new_layers: Callable[[], list[Any]], rows: Sequence[Sequence[int]]
) -> list[list[np.ndarray]]:
    """Return [row][step] log-probabilities; each row is fed the same tokens whatever it would choose."""
    for number, row in enumerate(rows):
        layers = new_layers()
        prefill.prefill_chunk(model, layers, row[:-1])
        lane.add(RowStart(number, layers, row[-1], [], _always_two, []))
    found: list[list[np.ndarray]] = [[] for _ in rows]
    for _ in range(STEPS):
        for step in lane.step():
            if step.error or step.logprobs is None:
                raise RuntimeError(step.error or "a step without log-probabilities")
            found[step.row].append(np.array(step.logprobs.astype(mx.float32)))
    return found


def _always_two(logprobs: mx.array) -> mx.array:
    return mx.full(logprobs.shape[:-1], 2, dtype=mx.uint32)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    spread = float(np.std(a))
    return float(np.sqrt(np.mean((a - b) ** 2))) / spread if spread > 0 else 0.0
