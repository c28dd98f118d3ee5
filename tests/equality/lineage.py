"""Where each row of a live cache was computed: a witness around the engine that notes every pass of the model.

It sees what the service asks of the engine and nothing of what the cache believes. Pieces are known by a digest of
their bytes, so an origin is found again after a way through memory, disk and a restart, and a piece with bytes that
nobody copied out of a live cache is noticed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import RotatingKVCache

from mlxcel.core import tokens as token_bytes
from mlxcel.engine import kinds
from mlxcel.engine.engine import LiveCache, MlxEngine
from mlxcel.engine.pieces import Piece
from mlxcel.ports import RowFailed, SamplingParams, StepToken
from tests.equality.passes import Batched, Joined, Left, Pass, Rows, Started, State, Stepped, cut_state


@dataclass
class _Lineage:
    """A live cache. `began`: how things stood when it was handed to the decode lane; `together`: others were there."""

    rows: Rows = ()
    state: State | None = None
    adopted: int = 0
    began: tuple[Rows, State | None] = ((), None)
    together: bool = False


@dataclass(frozen=True)
class _Kept:
    start: int
    rows: Rows
    state: State | None


class _Tap:
    """Stands for the model in the decode lane; remembers the logits of the last call."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.calls = 0
        self.logits: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        self.logits = self._model(*arguments, **named)
        return self.logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Witness:
    """An `Engine`: passes everything on and notes origins. `started` grows by one for each prompt that was run."""

    def __init__(self, engine: MlxEngine) -> None:
        self.engine = engine
        self.started: list[Started] = []
        self._kept: dict[bytes, _Kept] = {}
        self._passes: dict[Any, Pass] = {}
        self._decoding: dict[int, _Lineage] = {}
        self._events: list[Joined | Stepped | Left] = []
        windows = [leaf.max_size for _, leaf in kinds.leaves(engine._new_layers()) if type(leaf) is RotatingKVCache]
        self._window = min(windows, default=1 << 30)
        lane: Any = engine._lane
        self._tap = _Tap(engine._model)
        lane._model = self._tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def forget(self) -> None:
        """Forget all origins: a new history begins."""
        assert not self._decoding, "rows still decode"
        for known in (self.started, self._kept, self._passes):
            known.clear()

    # ------------------------------------------------------------------ passes

    def new_cache(self) -> LiveCache:
        return self._of(self.engine.new_cache(), _Lineage())

    def prefill(self, cache: LiveCache, tokens: bytes) -> None:
        self.engine.prefill(cache, tokens)
        self._ran(_lineage(cache), token_bytes.to_ids(tokens))

    def start_row(
        self, cache: LiveCache, last_token: int, context: bytes, params: SamplingParams, max_tokens: int
    ) -> int:
        lineage, calls = _lineage(cache), self._tap.calls
        lineage.began = (lineage.rows, lineage.state)
        row = self.engine.start_row(cache, last_token, context, params, max_tokens)
        assert self._tap.calls == calls + 1, "the end of a prompt is one pass"
        head = token_bytes.to_ids(context)[len(lineage.rows) :]
        if not head:  # otherwise the pass comes first, and leaves windows in order
            self._handed_over(lineage)
        last = self._ran(lineage, [*head, last_token])
        self.started.append(Started(last, np.array(self._tap.logits[0, -1]), lineage.adopted, bool(self._decoding)))
        if not self._decoding:
            self._events.clear()
        self._events.append(Joined(row, *lineage.began, last.tokens))
        self._decoding[row] = lineage
        if len(self._decoding) > 1 and self.engine.facts.lane == "batched":
            for each in self._decoding.values():
                each.together = True
        return row

    def decode_step(self) -> list[StepToken | RowFailed]:
        reports = self.engine.decode_step()
        for report in reports:
            assert isinstance(report, StepToken), report
            self._ran(self._decoding[report.row], [report.token])
        self._events.append(Stepped({report.row: report.token for report in reports if isinstance(report, StepToken)}))
        return reports

    def finish_row(self, row: int) -> tuple[LiveCache, bytes]:
        cache, covered = self.engine.finish_row(row)
        lineage = self._decoding.pop(row)
        self._events.append(Left(row, True))
        if lineage.together:
            tokens = tuple(at.tokens[number] for at, number in lineage.rows[len(lineage.began[0]) :])
            lineage.rows, lineage.state = lineage.began
            self._note(lineage, Pass(tokens, *lineage.began, Batched(tuple(self._events), row)))
        else:
            self._handed_over(lineage)
        return self._of(cache, lineage), covered

    def drop_row(self, row: int) -> None:
        self.engine.drop_row(row)
        self._events.append(Left(row, False))
        del self._decoding[row]

    # ------------------------------------------------------------------ pieces

    def copy_rows(self, cache: LiveCache, start: int, stop: int) -> Piece:
        piece = self.engine.copy_rows(cache, start, stop)
        self._keep(piece, _Kept(start, _lineage(cache).rows[start:stop], None))
        return piece

    def copy_state(self, cache: LiveCache, aligned: int) -> Piece:
        piece, lineage = self.engine.copy_state(cache, aligned), _lineage(cache)
        self._keep(piece, _Kept(aligned, lineage.rows[aligned:], lineage.state))
        return piece

    def cut_state(self, checkpoint: Piece, length: int) -> Piece:
        kept, piece = self._known(checkpoint), self.engine.cut_state(checkpoint, length)
        start = min(kept.start, length)
        assert kept.state is not None
        self._keep(piece, _Kept(start, kept.rows[: length - start], cut_state(kept.state, length)))
        return piece

    def assemble(
        self, runs: Sequence[tuple[Piece, int, int]], checkpoint: Piece | None, reserve_tokens: int
    ) -> LiveCache:
        rows: Rows = ()
        for piece, first, last in runs:
            rows += self._known(piece).rows[first:last]
        state = None
        if checkpoint is not None:
            kept = self._known(checkpoint)
            rows, state = rows + kept.rows, kept.state
        cache = self.engine.assemble(runs, checkpoint, reserve_tokens)
        return self._of(cache, _Lineage(rows, state, len(rows)))

    # ------------------------------------------------------------------ inside

    def _of(self, cache: LiveCache, lineage: _Lineage) -> LiveCache:
        assert cache.tokens == len(lineage.rows), f"{cache.tokens} tokens, {len(lineage.rows)} were computed"
        vars(cache)["lineage"] = lineage
        return cache

    def _ran(self, lineage: _Lineage, tokens: Sequence[int]) -> Pass:
        """Note a pass of one sequence alone. Equal passes over equal origins are one."""
        made = Pass(tuple(tokens), lineage.rows, lineage.state)
        made = self._passes.setdefault((made.tokens, made.before, made.state), made)
        return self._note(lineage, made)

    def _handed_over(self, lineage: _Lineage) -> None:
        if len(lineage.rows) > self._window:
            self._ran(lineage, [])

    def _note(self, lineage: _Lineage, made: Pass) -> Pass:
        lineage.rows = made.after()
        lineage.state = (made, made.stop) if self.engine.layout.states else None
        return made

    def _keep(self, piece: Piece, kept: _Kept) -> None:
        """Note where a piece is from. Of several with the same bytes the first is as good as any."""
        self._kept.setdefault(_digest(piece), kept)

    def _known(self, piece: Piece) -> _Kept:
        kept = self._kept.get(_digest(piece))
        assert kept is not None, f"a piece [{piece.start}, {piece.stop}) holds other bytes than were computed"
        return kept


def _lineage(cache: LiveCache) -> _Lineage:
    found: _Lineage = vars(cache)["lineage"]
    return found


def _digest(piece: Piece) -> bytes:
    made = hashlib.blake2b(repr((piece.start, piece.stop)).encode(), digest_size=16)
    for state in piece.states or ():
        made.update(repr((state.numbers, [array is None for array in state.arrays])).encode())
    for array in piece.arrays():
        made.update(repr((array.shape, str(array.dtype))).encode())
        made.update(np.array(array if array.dtype != mx.bfloat16 else array.view(mx.uint16)).tobytes())
    return made.digest()
