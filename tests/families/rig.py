"""The real service around a family's engine, in one process: log, LMDB tier, core, loop; stepped by the test itself."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from mlxcel import bootstrap
from mlxcel.config.settings import Settings
from mlxcel.core import tokens as token_bytes
from mlxcel.engine.engine import LiveCache, MlxEngine
from mlxcel.ports import CacheOptions, CacheScope, Delta, Failed, Finished, GenerateRequest, SamplingParams, StepToken
from mlxcel.service.job import ONE_PASS_TOKENS
from mlxcel.service.rates import Rates

CHUNK = 16  # smaller than every window: a ring that has wrapped hides behind bigger chunks
BLOCK = 16
VOCAB = 512


@dataclasses.dataclass(frozen=True)
class Ask:
    """One request. `boundaries`: planned positions; `cold`: past the cache."""

    ids: tuple[int, ...]
    max_tokens: int = 8
    boundaries: tuple[int, ...] = ()
    session: str = "s"
    cold: bool = False
    next_turn: Callable[[str], bytes | None] | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """Tokens, all log-probabilities of each step ({token: value}), and where the prompt came from."""

    tokens: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...]
    cached: int
    source: str


class _NoRates(Rates):
    """Tiny models prefill faster than any disk; nothing measured means that restoring is always worth it."""

    def measured(self) -> tuple[float, float]:
        return 0.0, 0.0


class Rig:
    """`ask` runs requests together to their end."""

    def __init__(self, parts: bootstrap.Parts, engine: MlxEngine, service: Any) -> None:
        self.parts = parts
        self.engine = engine
        self.service = service
        self._count = 0

    def ask(self, *asks: Ask) -> list[Answer]:
        """Submit all at once and step the loop until each has ended."""
        items: list[list[Any]] = [[] for _ in asks]
        for ask, got in zip(asks, items, strict=True):
            self._count += 1
            self.service.submit(_request(ask, f"r{self._count}"), got.append)
        while not all(got and isinstance(got[-1], (Finished, Failed)) for got in items):
            assert self.parts.loop._step()
        return [_answer(got) for got in items]

    def ask_around(self, ask: Ask, question: str, **arguments: Any) -> Answer:
        """Run one request; in the middle of its answer put a question that waits for its end."""
        got: list[Any] = []
        answer: Future[Any] = Future()
        self.service.submit(_request(ask, "around"), got.append)
        while not (got and isinstance(got[-1], Finished)):
            assert self.parts.loop._step()
            if sum(isinstance(item, Delta) for item in got) == 2:
                self.service.inbox.put(("ask", (question, arguments, answer)))
            assert not answer.done() or isinstance(got[-1], Finished)
        self.parts.loop._step()
        answer.result(timeout=5)
        return _answer(got)

    def questions(self) -> Any:
        """Return the loop's own answers to admin questions."""
        return self.parts.loop.questions

    def settle(self) -> None:
        """Write what is queued and book it."""
        assert self.parts.spill is None or self.parts.spill.flush(30.0)
        self.parts.loop._drain_inbox(block=False)
        assert self.questions().check()["broken"] == []


@contextmanager
def rig(engine: MlxEngine, data_dir: Path, **settings: Any) -> Iterator[Rig]:
    """Open the service over `data_dir`, as the daemon does, around an engine that is loaded already."""
    data_dir.mkdir(parents=True, exist_ok=True)
    chosen = Settings(
        model=engine.facts.path,
        data_dir=data_dir,
        prefill_chunk_size=CHUNK,
        prompt_cache_min_prefix=BLOCK,
        prompt_cache_capacity_bytes=64 << 20,
        snapshot_capacity_bytes=64 << 20,
        disk_capacity_bytes=256 << 20,
        max_batch_size=8,
        **settings,
    )
    service = bootstrap.new_service(chosen)
    with mock.patch.object(bootstrap, "_load_model", return_value=engine):
        parts = bootstrap.build(chosen, service)
    parts.loop.reuse.rates = _NoRates()
    service.set_phase("ready", facts=engine.facts)
    made = Rig(parts, engine, service)
    try:
        yield made
        made.settle()
    finally:
        bootstrap.close(parts)


def _request(ask: Ask, request_id: str) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        tokens=token_bytes.from_ids(ask.ids),
        params=SamplingParams(logprobs=VOCAB),
        max_tokens=ask.max_tokens,
        scope=CacheScope(session_key=ask.session),
        options=CacheOptions(read=not ask.cold, store=not ask.cold),
        boundaries=ask.boundaries,
        next_turn=ask.next_turn,
    )


def _answer(items: Sequence[Any]) -> Answer:
    end = items[-1]
    assert isinstance(end, Finished), end
    deltas = [item for item in items if isinstance(item, Delta)]
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    logprobs = tuple(dict(top) for delta in deltas for _, _, top in delta.logprobs)
    return Answer(tokens, logprobs, end.cached_tokens, end.source)


def reference(engine: MlxEngine, ask: Ask, cached: int = 0, decoded: tuple[int, int] = (0, 0)) -> Answer:
    """Compute an answer without any store, split where the answer that is checked was split.

    Prefilled on the grid, at `boundaries` and at `cached`, but for the tokens at positions [decoded): those are decoded
    one by one, as the answer of an earlier turn was, if `cached` reaches behind them. The cache stays live throughout.
    """
    ids, cache = ask.ids, engine.new_cache()
    begin, end = decoded
    if begin < end <= cached:
        _prefill(engine, cache, ids[:begin], [at for at in ask.boundaries if at < begin], cached)
        row = _start(engine, cache, ids[:begin], ids[begin:end], end - begin + 1)
        for _ in range(end - begin):
            engine.decode_step()
        cache, covered = engine.finish_row(row)
        assert begin - 1 + token_bytes.count(covered) == end
    _prefill(engine, cache, ids, ask.boundaries, cached)
    row = _start(engine, cache, ids, (), ask.max_tokens)
    tokens, logprobs = [], []
    while len(tokens) < ask.max_tokens:
        (step,) = engine.decode_step()
        assert isinstance(step, StepToken), step
        tokens.append(step.token)
        logprobs.append(dict(step.top))
        if step.finish:
            break
    engine.drop_row(row)
    return Answer(tuple(tokens), tuple(logprobs), cached, "reference")


def unsplit(engine: MlxEngine, ids: Sequence[int]) -> dict[int, float]:
    """Return the next-token log-probabilities of a prompt that is prefilled in one piece."""
    cache = engine.new_cache()
    engine.prefill(cache, token_bytes.from_ids(ids[:-1]))
    row = _start(engine, cache, ids, (), 1)
    (step,) = engine.decode_step()
    assert isinstance(step, StepToken), step
    engine.drop_row(row)
    return dict(step.top)


def _prefill(engine: MlxEngine, cache: LiveCache, ids: Sequence[int], boundaries: Sequence[int], cached: int) -> None:
    """Prefill as the loop does: on the grid, at captured positions, at `cached`; a short end is left to the last pass."""
    stop = len(ids) - 1
    captures = (boundaries or [stop]) if engine.facts.reuse == "snapshot" else []
    while cache.tokens < stop:
        grid = (cache.tokens // CHUNK + 1) * CHUNK
        end = min([grid, stop, *(at for at in (*captures, cached) if at > cache.tokens)])
        if end == stop < cache.tokens + ONE_PASS_TOKENS and end not in captures:
            return
        engine.prefill(cache, token_bytes.from_ids(ids[cache.tokens : end]))


def _start(engine: MlxEngine, cache: LiveCache, ids: Sequence[int], then: Sequence[int], max_tokens: int) -> int:
    params = SamplingParams(logprobs=VOCAB, forced_tokens=tuple(then))
    return engine.start_row(cache, ids[-1], token_bytes.from_ids(ids[:-1]), params, max_tokens)
