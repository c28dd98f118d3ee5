"""The sequential decode lane: rows in turn, for caches that can't be merged into a batch."""

from typing import Any

import mlx.core as mx

from mlxcel.engine import prefill
from mlxcel.engine.lanes import RowStart, Stepped, fault_text, nbytes_of


class _Row:
    """One row, one step ahead like a batch: `token` has been chosen, the model has not seen it."""

    def __init__(self, model: Any, start: RowStart) -> None:
        self._model = model
        self._start = start
        self._context = mx.array(start.context, dtype=mx.uint32)
        self.layers = start.layers
        self.token = mx.array([*start.head, start.last_token], dtype=mx.uint32)
        self.logprobs: mx.array | None = None
        self.advance()

    def advance(self) -> tuple[int, mx.array | None]:
        """Feed the chosen token, choose the next one; returns the token that was fed and its log-probabilities."""
        fed, logprobs = self.token, self.logprobs
        logits = self._model(fed[None], cache=self.layers)[:, -1, :]
        if self._start.processors:
            self._context = mx.concatenate([self._context, fed[-1:]])
            for process in self._start.processors:
                logits = process(self._context, logits)
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        self.token, self.logprobs = self._start.sampler(scores), scores[0]
        mx.async_eval(self.token, self.logprobs)
        token: Any = fed[-1].item()
        return int(token), logprobs

    def evaluate(self) -> None:
        prefill.evaluate(self.layers)


class SequentialLane:
    """See `mlxcel.engine.lanes.Lane`. A fault loses one row only."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rows: dict[int, _Row] = {}
        self._parked: dict[int, _Row] = {}

    def add(self, start: RowStart) -> None:
        self._rows[start.row] = _Row(self._model, start)

    def step(self) -> list[Stepped]:
        stepped = []
        for number, row in list(self._rows.items()):
            try:
                stepped.append(Stepped(number, *row.advance()))
            except Exception as error:
                del self._rows[number]
                stepped.append(Stepped(number, error=fault_text(error)))
        return stepped

    def park(self, row: int) -> None:
        self._parked[row] = self._rows.pop(row)

    def take(self, row: int) -> list[Any]:
        taken = self._parked.pop(row) if row in self._parked else self._rows.pop(row)
        taken.evaluate()
        return taken.layers

    def drop(self, row: int) -> None:
        (self._parked if row in self._parked else self._rows).pop(row)

    def nbytes(self) -> int:
        return sum(nbytes_of(row.layers) for row in (*self._rows.values(), *self._parked.values()))
