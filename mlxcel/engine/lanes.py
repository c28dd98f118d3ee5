"""The batched decode lane: mlx-lm's `GenerationBatch`, handed prefilled caches, decoding only.

Both lanes run one step ahead: the model has already seen a token when it is reported. So at any moment a row's cache
covers what it started with, the last prompt token, and every reported token; nothing else.
`GenerationBatch` of mlx-lm 0.32.2 extends the token lists it is given in place; each row gets its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import ArraysCache, BatchKVCache, CacheList, KVCache

from mlxcel.engine import kinds, prefill
from mlxcel.engine.pieces import detached
from mlxcel.engine.sampling import Processor, Sampler, greedy

NO_LIMIT = 1 << 62  # the engine itself finds the end of a row


@dataclass(frozen=True)
class RowStart:
    """What a lane needs to decode a row; the lane owns `layers` from here on.

    `head`: prompt tokens that `layers` do not cover yet, before the last; `context`: all before the last.
    """

    row: int
    layers: list[Any]
    last_token: int
    context: list[int]
    sampler: Sampler
    processors: list[Processor]
    head: Sequence[int] = ()


@dataclass(frozen=True)
class Stepped:
    """One row after one step: a token and its evaluated log-probabilities [vocab], or the fault that lost the row."""

    row: int
    token: int = -1
    logprobs: mx.array | None = None
    error: str = ""


class Lane(Protocol):
    """Rows that decode together or in turn."""

    def add(self, start: RowStart) -> None: ...

    def step(self) -> list[Stepped]:
        """Decode one token of every row; rows lost since the last step are reported once, with the fault."""
        ...

    def park(self, row: int) -> None:
        """Take a row out of decoding and keep its cache for `take`."""
        ...

    def take(self, row: int) -> list[Any]:
        """Take the row out and return its own cache, evaluated and sharing no buffer with other rows."""
        ...

    def drop(self, row: int) -> None: ...

    def nbytes(self) -> int: ...


def fault_text(error: Exception) -> str:
    """Return an exception as one line for events and logs."""
    return f"{type(error).__name__}: {error}"


def nbytes_of(layers: Sequence[Any]) -> int:
    """Return the bytes that a list of caches holds, allocated room included."""
    return sum(cache.nbytes for cache in layers if not cache.empty())


class BatchedLane:
    """All rows in one rectangular batch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._batch: GenerationBatch | None = None
        self._parked: dict[int, list[Any]] = {}
        self._lost: list[Stepped] = []

    def add(self, start: RowStart) -> None:
        """Run the last prompt token (with `head` before it, if any) through the row alone, then join it to the batch."""
        known = _KnownLogits(self._model, start) if start.head else None
        single = GenerationBatch(
            known or self._model,
            [start.row],
            mx.array([start.last_token], dtype=mx.uint32),
            [_batch_of_one(cache) for cache in start.layers],
            [list(start.context) if start.processors else []],
            [start.sampler],
            greedy,
            [start.processors],
            [StopSequences()],
            [NO_LIMIT],
        )
        single.model = self._model
        if self._batch is None:
            self._batch = single
            return
        try:
            self._batch.extend(single)
        except Exception as error:
            self._break(error)
            raise

    def step(self) -> list[Stepped]:
        """See `Lane.step`. After a fault the whole batch is lost, since its caches can't be trusted."""
        stepped = []
        if self._batch is not None:
            try:
                stepped = [Stepped(r.uid, r.token, r.logprobs) for r in self._batch.next()]
            except Exception as error:
                self._break(error)
        lost, self._lost = self._lost, []
        return lost + stepped

    def park(self, row: int) -> None:
        """See `Lane.park`. A batch's extracted cache is a lazy copy of the whole batch until evaluated, so it is."""
        batch = self._decoding(row)
        try:
            layers = [_own(cache) for cache in batch.extract_cache(batch.uids.index(row))]
            mx.eval([array for _, leaf in kinds.leaves(layers) for array in kinds.arrays_of(leaf)])
            self._remove(row)
        except Exception as error:
            self._break(error)
            raise
        self._parked[row] = layers

    def take(self, row: int) -> list[Any]:
        """See `Lane.take`."""
        if row not in self._parked:
            self.park(row)
        return self._parked.pop(row)

    def drop(self, row: int) -> None:
        """Take the row out; its cache is never extracted."""
        if row in self._parked:
            del self._parked[row]
        else:
            self._remove(row)

    def nbytes(self) -> int:
        """Return the bytes of the batch (rows x longest length) and of parked rows."""
        batch = [] if self._batch is None else self._batch.prompt_cache
        return nbytes_of(batch) + sum(nbytes_of(layers) for layers in self._parked.values())

    def _break(self, error: Exception) -> None:
        """Give up the batch after a fault: half-done writes may be in any of its caches."""
        rows = [] if self._batch is None else self._batch.uids
        self._lost += [Stepped(row, error=fault_text(error)) for row in rows]
        self._batch = None

    def _decoding(self, row: int) -> GenerationBatch:
        batch = self._batch
        if batch is None or row not in batch.uids:
            raise AssertionError(f"row {row} is not decoding")
        return batch

    def _remove(self, row: int) -> None:
        batch = self._decoding(row)
        keep = [index for index, uid in enumerate(batch.uids) if uid != row]
        if keep:
            batch.filter(keep)
        else:
            self._batch = None


class _KnownLogits:
    """Stands in for the model in a batch's first step: the pass is made here, on the row's plain caches, as prefill's are."""

    def __init__(self, model: Any, start: RowStart) -> None:
        ids = mx.array([[*start.head, start.last_token]], dtype=mx.uint32)
        self._logits = model(ids, cache=start.layers)[:, -1:, :]
        prefill.lay_out(start.layers)

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        return self._logits


def _batch_of_one(cache: Any) -> Any:
    """Turn a row's cache into a batch of one.

    `KVCache.merge` copies everything into a buffer without room, which the next step copies again. The lane owns the
    cache, so a batch of one takes its buffer over, reserved room included.
    """
    if type(cache) is CacheList:
        return CacheList(*(_batch_of_one(inner) for inner in cache.caches))
    if type(cache) is not KVCache or cache.keys is None:
        return cache.merge([cache])
    batch = BatchKVCache([0])
    batch.keys, batch.values, batch._idx = cache.keys, cache.values, cache.offset
    batch.offset = mx.array([cache.offset])
    return batch


def _own(cache: Any) -> Any:
    """Copy recurrent state out of the batch: `ArraysCache.extract` returns slices, which keep the batch alive."""
    for _, leaf in kinds.leaves([cache]):
        if type(leaf) is ArraysCache:
            leaf.cache = [None if array is None else detached(array) for array in leaf.cache]
    return cache
