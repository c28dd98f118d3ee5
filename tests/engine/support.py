"""Short ways to drive a real engine in tests."""

import random
from typing import Any

import mlx.core as mx

from mlxcel.core import tokens as token_bytes
from mlxcel.engine import kinds
from mlxcel.engine.engine import LiveCache, MlxEngine
from mlxcel.ports import Part, RowFailed, SamplingParams, StepToken

CHUNK = 16
GREEDY = SamplingParams()
KINDS = (
    "llama",
    "qwen3",
    "gemma3_text",
    "qwen3_next",
    "mamba2",
    "lfm2",
    "falcon_h1",
    "gpt_oss",
    "nemotron_h",
    "llama4",
)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return token ids of a seeded prompt, none of them special."""
    source = random.Random(seed)
    return [source.randrange(3, 512) for _ in range(length)]


def prefill(engine: MlxEngine, ids: list[int], cache: LiveCache | None = None, chunk: int = CHUNK) -> LiveCache:
    """Run `ids` in chunks into `cache` (a new one by default)."""
    cache = cache or engine.new_cache()
    for start in range(0, len(ids), chunk):
        engine.prefill(cache, token_bytes.from_ids(ids[start : start + chunk]))
    return cache


def start(
    engine: MlxEngine,
    ids: list[int],
    max_tokens: int = 12,
    params: SamplingParams = GREEDY,
    cache: LiveCache | None = None,
) -> int:
    """Start a row for the whole prompt `ids`; `cache` holds all but the last token."""
    cache = cache or prefill(engine, ids[:-1])
    return engine.start_row(cache, ids[-1], token_bytes.from_ids(ids[:-1]), params, max_tokens)


def steps(engine: MlxEngine, count: int = 1) -> list[StepToken | RowFailed]:
    """Return what `count` decode steps report."""
    return [item for _ in range(count) for item in engine.decode_step()]


def alone(engine: MlxEngine, ids: list[int], max_tokens: int = 12, params: SamplingParams = GREEDY) -> list[int]:
    """Return the answer to a prompt that is served alone and cold."""
    row = start(engine, ids, max_tokens, params)
    answer = run_row(engine, row)
    engine.drop_row(row)
    return answer


def run_row(engine: MlxEngine, row: int) -> list[int]:
    """Step until `row` finishes; returns its tokens."""
    answer: list[int] = []
    while not engine._rows[row].finished:
        for item in steps(engine):
            assert isinstance(item, StepToken), item
            if item.row == row:
                answer.append(item.token)
    return answer


def through_bytes(engine: MlxEngine, piece: Any) -> Any:
    """Return the piece as it comes back from a store that holds bytes."""
    parts = [Part(p.name, p.dtype, p.shape, bytes(p.data)) for p in engine.piece_parts(piece)]
    return engine.piece_from_parts(parts)


def stored(engine: MlxEngine, cache: LiveCache, aligned: int) -> tuple[list[tuple[Any, int, int]], Any]:
    """Copy a cache out as runs of 16 rows up to `aligned` and a checkpoint, through bytes."""
    pieces = [engine.copy_rows(cache, first, first + 16) for first in range(0, aligned, 16)]
    runs = [(through_bytes(engine, piece), 0, 16) for piece in pieces]
    return runs, through_bytes(engine, engine.copy_state(cache, aligned))


def restored(engine: MlxEngine, cache: LiveCache, aligned: int, reserve_tokens: int = 0) -> LiveCache:
    """Return a cache built from what was copied out of `cache`."""
    return engine.assemble(*stored(engine, cache, aligned), reserve_tokens)


def next_logits(engine: MlxEngine, cache: LiveCache, token: int) -> mx.array:
    """Feed one token; returns its logits [vocab]. The cache is moved on."""
    logits = engine._model(mx.array([[token]]), cache=cache.layers)[0, -1]
    mx.eval(logits)
    cache.tokens += 1
    return logits


def same_content(engine: MlxEngine, left: LiveCache, right: LiveCache) -> bool:
    """Return whether two caches hold the same bits, allocated room and ring order aside."""
    assert left.tokens == right.tokens
    checks = []
    for a, b in zip(engine.layout.written(left.layers), engine.layout.written(right.layers), strict=True):
        if kinds.kind_of(a) == "rows":
            pairs = zip(kinds.row_tensors(a), kinds.row_tensors(b), strict=True)
            checks += [mx.array_equal(x[:, :, : left.tokens], y[:, :, : left.tokens]).item() for x, y in pairs]
            continue
        (arrays_a, numbers_a), (arrays_b, numbers_b) = kinds.read_state(a), kinds.read_state(b)
        checks.append(numbers_a == numbers_b)
        both = [(x, y) for x, y in zip(arrays_a, arrays_b, strict=True) if x is not None or y is not None]
        checks += [x is not None and y is not None and mx.array_equal(x, y).item() for x, y in both]
    return all(checks)
