"""Cold runs of the bare model on mlx-lm's own caches: pass by pass as it was done, or in one piece.

Nothing is stored, copied out or put together again, and no part of mlxcel takes part but, for answers that were decoded
together, the lane that they share: how many rows a product has can decide the order of its sums, so all are run again.
A pass whose later tokens are not part of a prompt is run as it was and its cache then cut, since the number of rows of a
product can decide the order of its sums. Rows that came from different runs (one request kept a prefix, another that had
computed the same prefix otherwise kept the tokens behind it) are run each on their own and joined.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, QuantizedKVCache, RotatingKVCache

from mlxcel.engine.lanes import BatchedLane, RowStart
from mlxcel.engine.sampling import make_sampler
from mlxcel.ports import SamplingParams
from tests.equality.passes import Batched, Joined, Left, Pass, Rows, State, Stepped


class Cold:
    """`logits_of` a pass, computed from nothing. Of the last one, `joined`: it took rows of several runs; `batched`: of
    answers that were decoded together."""

    def __init__(self, model: Any, new_layers: Callable[[], list[Any]]) -> None:
        self._model = model
        self._new_layers = new_layers
        self.joined = self.batched = False

    def logits_of(self, last: Pass) -> np.ndarray:
        """Run all passes that `last` rests on, then `last`; returns the logits [vocab] of its last token."""
        self.joined = self.batched = False
        return _last_row(self._run(last)[1])

    def unsplit(self, prompt: Sequence[int]) -> np.ndarray:
        """Return the logits [vocab] after a prompt that is run in one pass."""
        return _last_row(self._evaluated(self._new_layers(), prompt))

    def _run(self, last: Pass) -> tuple[list[Any], mx.array | None]:
        chain = [last]
        while chain[-1].before and _follows(chain[-1].before, chain[-1].state):
            chain.append(_top(chain[-1].before, chain[-1].state))
        layers = self._build(chain[-1].before, chain[-1].state)
        logits = None
        for after, made in enumerate(reversed(chain), start=1):
            logits = self._forward(layers, made)
            if after < len(chain):
                _cut(layers, made.stop - chain[-1 - after].start)
        return layers, logits

    def _build(self, rows: Rows, state: State | None) -> list[Any]:
        """Return a cache whose rows have these origins."""
        if not rows:
            return self._new_layers()
        top = _top(rows, state)
        layers = self._run(top)[0]
        _cut(layers, top.stop - len(rows))
        pairs = enumerate(zip(rows, top.after(), strict=False))
        foreign = {at: origin[0] for at, (origin, mine) in pairs if origin != mine}
        for other in dict.fromkeys(foreign.values()):
            self.joined = True
            _copy_rows(self._run(other)[0], layers, [at for at, origin in foreign.items() if origin is other])
        return layers

    def _forward(self, layers: list[Any], made: Pass) -> mx.array | None:
        """Run one pass; returns its logits [1, tokens, vocab], if it has any of its own."""
        if made.batch is not None:
            layers[:] = self._decode(layers, made.batch)
            return None
        if not made.tokens:
            _take_over(layers)
            return None
        return self._evaluated(layers, made.tokens)

    def _evaluated(self, layers: list[Any], tokens: Sequence[int]) -> mx.array:
        logits: mx.array = self._model(mx.array([list(tokens)], dtype=mx.uint32), cache=layers)
        for leaf in _leaves(layers):
            if type(leaf) is ArraysCache:  # a transposed state is multiplied in another order than one from a store
                leaf.cache = [None if array is None else mx.contiguous(array) for array in leaf.cache]
        mx.eval([logits, *(array for leaf in _leaves(layers) for array in _arrays(leaf))])
        return logits

    def _decode(self, layers: list[Any], batch: Batched) -> list[Any]:
        """Decode all rows of a batch again as they came and went; returns the cache of the one that is asked for."""
        self.batched = True
        lane = BatchedLane(self._model)
        for event in batch.events:
            if isinstance(event, Joined):
                mine = event.row == batch.row
                caches = layers if mine else self._build(event.before, event.state)
                spoken = [_tokens(step)[event.row] for step in batch.events if event.row in _tokens(step)]
                sampler = make_sampler(SamplingParams(forced_tokens=tuple(spoken)))
                *head, last = event.tokens
                lane.add(RowStart(event.row, caches, last, [], sampler, [], head))
            elif isinstance(event, Stepped):
                said = {step.row: step.token for step in lane.step()}
                assert said == event.tokens, f"{said} were decoded, {event.tokens} before"
            elif event.row == batch.row:
                return lane.take(event.row)
            else:
                lane.drop(event.row)
        raise AssertionError(f"row {batch.row} never left its batch")


def _tokens(event: Joined | Stepped | Left) -> dict[int, int]:
    return event.tokens if isinstance(event, Stepped) else {}


def _last_row(logits: mx.array | None) -> np.ndarray:
    assert logits is not None
    return np.array(logits[0, -1])


def _take_over(layers: Sequence[Any]) -> None:
    """Put windows that go round in a ring in order of time, as mlx-lm does where a row enters a batch or leaves it."""
    for leaf in _leaves(layers):
        if type(leaf) is RotatingKVCache:
            leaf.keys, leaf.values = leaf._temporal_order(leaf.keys), leaf._temporal_order(leaf.values)
            leaf._idx = leaf.keys.shape[2]


def _top(rows: Rows, state: State | None) -> Pass:
    return rows[-1][0] if state is None else state[0]


def _follows(rows: Rows, state: State | None) -> bool:
    """True when one run has computed all of it."""
    return rows == _top(rows, state).after()[: len(rows)]


def _leaves(layers: Sequence[Any]) -> Iterator[Any]:
    for cache in layers:
        if type(cache) is CacheList:
            yield from _leaves(cache.caches)
        else:
            yield cache


def _arrays(leaf: Any) -> list[mx.array]:
    if type(leaf) is ArraysCache:
        return [array for array in leaf.cache if array is not None]
    if type(leaf) is QuantizedKVCache:
        return [*leaf.keys, *leaf.values]
    return [leaf.keys, leaf.values]


def _cut(layers: Sequence[Any], rows: int) -> None:
    """Drop the last rows, as mlx-lm does."""
    if rows == 0:
        return
    for leaf in _leaves(layers):
        whole = leaf.offset <= leaf.max_size if type(leaf) is RotatingKVCache else leaf.is_trimmable()
        assert whole, f"{type(leaf).__name__} can't be cut"
        assert leaf.trim(rows) == rows


def _copy_rows(source: Sequence[Any], target: Sequence[Any], rows: Sequence[int]) -> None:
    """Overwrite some rows of what grows by the row."""
    for mine, theirs in zip(_leaves(target), _leaves(source), strict=True):
        if type(mine) in (ArraysCache, RotatingKVCache):
            continue
        for to, of in zip(_arrays(mine), _arrays(theirs), strict=True):
            for at in rows:
                to[..., at, :] = of[..., at, :]
