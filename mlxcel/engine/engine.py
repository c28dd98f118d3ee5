"""The engine: one loaded model behind the `Engine` protocol of `mlxcel.ports`."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from mlxcel.core import tokens as token_bytes
from mlxcel.engine import kinds, memory, parts, pieces, prefill, sampling
from mlxcel.engine.adapters import Adapter
from mlxcel.engine.digests import DigestCache
from mlxcel.engine.lanes import BatchedLane, Lane, RowStart, Stepped
from mlxcel.engine.layout import Layout
from mlxcel.engine.sequential import SequentialLane
from mlxcel.ports import ModelFacts, Part, Parts, RowFailed, SamplingParams, StepToken

STEPS_PER_CLEANUP = 256  # give freed buffers back to the system about as often as mlx-lm does


@dataclass
class LiveCache:
    """A live cache and how many tokens it covers (recurrent state doesn't know). Emptied when a row takes it."""

    layers: list[Any]
    tokens: int


@dataclass
class _Row:
    start_tokens: int
    last_token: int
    params: SamplingParams
    max_tokens: int
    emitted: list[int] = field(default_factory=list)
    finished: bool = False
    parked: bool = False


class MlxEngine:
    """See `mlxcel.ports.Engine`. Every call must come from the thread that made the engine."""

    def __init__(self, model: Any, layout: Layout, facts: ModelFacts, new_layers: Callable[[], list[Any]]) -> None:
        self.facts = facts
        self.layout = layout
        self._model = model
        self._new_layers = new_layers
        self._thread = threading.get_ident()
        self._adapter: Adapter | None = None
        self._lane: Lane = BatchedLane(model) if facts.lane == "batched" else SequentialLane(model)
        self._rows: dict[int, _Row] = {}
        self._next_row = 0
        self._steps = 0

    # ------------------------------------------------------------------ caches

    def new_cache(self) -> LiveCache:
        """Return an empty live cache of the model."""
        self._check_thread()
        return LiveCache(self._new_layers(), 0)

    def cache_tokens(self, cache: LiveCache) -> int:
        """Return the tokens covered; asserts that every layer that knows its length agrees."""
        self._check_thread()
        for leaf in self.layout.written(cache.layers):
            if kinds.kind_of(leaf) != "unknown":
                length = kinds.length_of(leaf)
                assert length in (None, cache.tokens), f"{kinds.class_name(leaf)} has {length}, not {cache.tokens}"
        return cache.tokens

    def prefill(self, cache: LiveCache, tokens: bytes) -> None:
        """Run one chunk (1 token or more). After an exception the cache is unusable and must be thrown away."""
        self._check_thread()
        ids = token_bytes.to_ids(tokens)
        assert ids, "a chunk has at least one token"
        prefill.prefill_chunk(self._model, cache.layers, ids)
        cache.tokens += len(ids)

    # ------------------------------------------------------------------ pieces

    def copy_rows(self, cache: LiveCache, start: int, stop: int) -> pieces.Piece:
        """Copy rows [start, stop) of every growing layer. Asserts that the model can keep its cache."""
        self._check_keepable(cache)
        assert 0 <= start < stop <= cache.tokens, f"rows [{start}, {stop}) of a cache of {cache.tokens} tokens"
        return pieces.copy_piece(self.layout, cache.layers, start, stop, with_state=False)

    def copy_state(self, cache: LiveCache, aligned: int) -> pieces.Piece:
        """Copy rows [aligned, length) of growing layers and the whole state of the others."""
        self._check_keepable(cache)
        assert 0 <= aligned <= cache.tokens > 0, f"checkpoint from {aligned} of a cache of {cache.tokens} tokens"
        return pieces.copy_piece(self.layout, cache.layers, aligned, cache.tokens, with_state=True)

    def state_cuttable(self, cache: LiveCache) -> bool:
        """Return whether a checkpoint of this cache could be cut at any earlier position: asked of its objects."""
        self._check_thread()
        leaves = [leaf for _, leaf in kinds.leaves(cache.layers)]
        return bool(self.layout.states) and all(kinds.cuttable(leaves[spec.leaf]) for spec in self.layout.states)

    def cut_state(self, checkpoint: pieces.Piece, length: int) -> pieces.Piece:
        """Return a copy of a cuttable checkpoint as it would have been at `length` tokens."""
        self._check_thread()
        return pieces.cut_checkpoint(checkpoint, length)

    def piece_bytes(self, piece: pieces.Piece) -> int:
        """Return the bytes that the piece's arrays hold."""
        return piece.nbytes()

    def piece_parts(self, piece: pieces.Piece) -> list[Part]:
        """View the piece as bytes; the parts may be read from any thread."""
        self._check_thread()
        return parts.piece_parts(piece)

    def piece_from_parts(self, parts_of_piece: Parts) -> pieces.Piece:
        """Rebuild a piece. Raises ValueError when shape, dtype or layers do not fit the model."""
        self._check_thread()
        return parts.piece_from_parts(self.layout, parts_of_piece)

    def assemble(
        self, runs: Sequence[tuple[pieces.Piece, int, int]], checkpoint: pieces.Piece | None, reserve_tokens: int
    ) -> LiveCache:
        """Build a live cache; a run is (piece, first, last) with rows [first, last) counted inside the piece."""
        self._check_thread()
        layers = self._new_layers()
        total = pieces.assemble(self.layout, layers, runs, checkpoint, reserve_tokens)
        cache = LiveCache(layers, total)
        self.cache_tokens(cache)
        return cache

    # ------------------------------------------------------------------ rows

    def start_row(
        self, cache: LiveCache, last_token: int, context: bytes, params: SamplingParams, max_tokens: int
    ) -> int:
        """Hand a prefilled cache to the decode lane, which owns it from here on.

        `context`: all of the prompt but `last_token`, for the penalties; what the cache does not cover of it runs in one
        pass with the last token. Raises what the model raises; rows of a batch that it broke are reported by the next
        `decode_step`.
        """
        covered, start = self.cache_tokens(cache), token_bytes.count(context)
        assert covered <= start, f"context of {start} tokens, cache {covered}"
        head = token_bytes.to_ids(token_bytes.cut(context, covered, start))
        assert max_tokens >= 1, "a row decodes at least one token"
        row, self._next_row = self._next_row, self._next_row + 1
        processors = sampling.make_processors(params)
        ids = token_bytes.to_ids(context) if processors else []
        layers, cache.layers = cache.layers, []
        self._lane.add(RowStart(row, layers, last_token, ids, sampling.make_sampler(params), processors, head))
        self._rows[row] = _Row(start, last_token, params, max_tokens)
        return row

    def decode_step(self) -> list[StepToken | RowFailed]:
        """Decode one token of every row that has not finished."""
        self._check_thread()
        for number, row in self._rows.items():
            if row.finished and not row.parked:
                self._lane.park(number)
                row.parked = True
        self._steps += 1
        if self._steps % STEPS_PER_CLEANUP == 0:
            mx.clear_cache()
        reports = [self._report(step) for step in self._lane.step()]
        return [report for report in reports if report is not None]

    def finish_row(self, row: int) -> tuple[LiveCache, bytes]:
        """Take a row out; returns its cache and the tokens it covers after those it started with: the last prompt
        token, then every token that was reported."""
        self._check_thread()
        taken = self._rows.pop(row)
        covered = [taken.last_token, *taken.emitted]
        cache = LiveCache(self._lane.take(row), taken.start_tokens + len(covered))
        self.cache_tokens(cache)
        return cache, token_bytes.from_ids(covered)

    def drop_row(self, row: int) -> None:
        """Take a row out without copying its cache."""
        self._check_thread()
        del self._rows[row]
        self._lane.drop(row)

    def rows(self) -> int:
        """Return the rows not yet finished, dropped or lost."""
        return len(self._rows)

    def live_bytes(self) -> int:
        """Return the bytes of all rows' caches, room included."""
        return self._lane.nbytes()

    def memory(self) -> dict[str, int]:
        """See `mlxcel.engine.memory.memory_report`."""
        return memory.memory_report()

    # ------------------------------------------------------------------ adapters

    def attach(self, path: Path, scale: float, digests: DigestCache) -> None:
        """Put a LoRA adapter into the model, unfused. Raises ModelLoadError."""
        self._check_thread()
        assert self._adapter is None, "one adapter at a time"
        self._adapter = Adapter(self._model, path, scale, digests)
        self.set_lora_scale(scale)

    def lora(self) -> list[dict[str, Any]]:
        """Return id, path and scale of the adapters."""
        adapter = self._adapter
        return [] if adapter is None else [{"id": 0, "path": str(adapter.path), "scale": adapter.scale}]

    def set_lora_scale(self, scale: float) -> None:
        """Change the adapter's scale; `facts.lora_id` changes with it. No row may be running."""
        self._check_thread()
        assert self._adapter is not None, "there is no adapter"
        assert not self._rows, "rows still decode with the old scale"
        self._adapter.set_scale(scale)
        self.facts = msgspec.structs.replace(self.facts, lora_id=self._adapter.lora_id())

    # ------------------------------------------------------------------ inside

    def _report(self, step: Stepped) -> StepToken | RowFailed | None:
        """Book one row's step; None for a row whose loss the caller has already been told."""
        if step.error:
            return RowFailed(step.row, step.error) if self._rows.pop(step.row, None) else None
        row = self._rows[step.row]
        row.emitted.append(step.token)
        finish = None
        if step.token in self.facts.eos_token_ids:
            finish = "stop"
        elif len(row.emitted) >= row.max_tokens:
            finish = "length"
        row.finished = finish is not None
        if row.params.logprobs < 0 or step.logprobs is None:
            return StepToken(step.row, step.token, finish)
        chosen = sampling.logprob_of(step.logprobs, step.token)
        top = sampling.top_logprobs(step.logprobs, row.params.logprobs)
        return StepToken(step.row, step.token, finish, chosen, top)

    def _check_keepable(self, cache: LiveCache) -> None:
        assert self.facts.reuse != "none", self.facts.reuse_refusal
        self.cache_tokens(cache)

    def _check_thread(self) -> None:
        assert threading.get_ident() == self._thread, "the engine is called from another thread than its maker's"
