"""Decoding together gives each row what it gets alone, and a finished row's cache is exactly its tokens."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.core import tokens as token_bytes
from mlxcel.engine.engine import MlxEngine
from mlxcel.ports import RowFailed, SamplingParams, StepToken
from tests.engine.support import (
    KINDS,
    alone,
    next_logits,
    prefill,
    prompt,
    restored,
    run_row,
    same_content,
    start,
    steps,
)

EngineOf = Callable[..., MlxEngine]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_batch_gives_each_row_its_own_answer(engine_of: EngineOf, kind: str, seed: int) -> None:
    """Unequal lengths, hits and cold rows, rows that join late or leave in the middle: all as if alone."""
    engine = engine_of(kind)
    source = random.Random(seed)
    prompts = [prompt(length, 10 * seed + i) for i, length in enumerate((1, 2, 5, 17, 33, 40, 70, 90))]
    source.shuffle(prompts)
    expected = [alone(engine, ids, 40) for ids in prompts]
    answers: list[list[int]] = [[] for _ in prompts]
    row_of: dict[int, int] = {}
    waiting = list(enumerate(prompts))
    for step in range(70):
        if waiting and step % 3 != 1:
            index, ids = waiting.pop()
            cache = prefill(engine, ids[:-1])
            if index % 2 and len(ids) > 1:
                cache = restored(engine, cache, (len(ids) - 1) // 16 * 16)
            row_of[start(engine, ids, 40, cache=cache)] = index
        for item in steps(engine):
            assert isinstance(item, StepToken), item
            answers[row_of[item.row]].append(item.token)
            if item.finish or (row_of[item.row] % 3 == 2 and len(answers[row_of[item.row]]) == 7):
                engine.drop_row(item.row)
    assert engine.rows() == 0
    for index, answer in enumerate(answers):
        assert answer == (expected[index][:7] if index % 3 == 2 else expected[index]), f"prompt {index}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop_after", [0, 1, 9])
def test_finished_cache_covers_exactly_its_tokens(engine_of: EngineOf, kind: str, stop_after: int) -> None:
    """A row taken out of a batch at any step leaves the KV of context, last token and reported tokens (B003, B030)."""
    engine = engine_of(kind)
    ids = prompt(37)
    mates = [start(engine, prompt(n, n), 30) for n in (4, 60)]
    row = start(engine, ids, 60)
    together = [item for item in steps(engine, stop_after) if isinstance(item, StepToken)]
    reported = [item.token for item in together if item.row == row]
    cache, covered = engine.finish_row(row)
    assert token_bytes.to_ids(covered) == [ids[-1], *reported]
    assert engine.cache_tokens(cache) == len(ids) + stop_after
    same = prefill(engine, [ids[-1], *reported], prefill(engine, ids[:-1]), chunk=1)
    after, expected = next_logits(engine, cache, 11), next_logits(engine, same, 11)
    np.testing.assert_allclose(np.array(after), np.array(expected), rtol=2e-4, atol=2e-4)
    mate = [item.token for item in together if item.row == mates[0]] + run_row(engine, mates[0])
    assert mate == alone(engine, prompt(4, 4), 30)


@pytest.mark.parametrize("kind", KINDS)
def test_next_turn_continues_from_a_finished_cache(engine_of: EngineOf, kind: str) -> None:
    """A finished cache, stored and restored, continues as one long run with the same split points does."""
    engine = engine_of(kind)
    ids, turn = prompt(50), prompt(20, seed=3)
    row = start(engine, ids, 12)
    answer = run_row(engine, row)
    cache, covered = engine.finish_row(row)
    back = restored(engine, cache, engine.cache_tokens(cache) // 16 * 16)
    assert same_content(engine, cache, back)
    history = [*ids[:-1], *token_bytes.to_ids(covered)]
    assert history == [*ids, *answer]
    warm = run_row(engine, start(engine, [*history, *turn], 12, cache=prefill(engine, turn[:-1], back)))
    long = prefill(engine, history[len(ids) - 1 :], prefill(engine, ids[:-1]), chunk=1)
    assert warm == run_row(engine, start(engine, [*history, *turn], 12, cache=prefill(engine, turn[:-1], long)))


def test_rows_finish_with_a_reason(llama: MlxEngine) -> None:
    """An end token finishes with "stop", the limit with "length", and a finished row emits nothing more."""
    stopping = start(llama, prompt(9), 10, SamplingParams(forced_tokens=(5, 6, 2, 7)))
    limited = start(llama, prompt(9), 2, SamplingParams(forced_tokens=(5, 2)))
    short = start(llama, prompt(9), 2, SamplingParams(forced_tokens=(5, 6, 7)))
    seen = [(i.row, i.token, i.finish) for i in steps(llama, 5) if isinstance(i, StepToken)]
    assert [(t, f) for r, t, f in seen if r == stopping] == [(5, None), (6, None), (2, "stop")]
    assert [(t, f) for r, t, f in seen if r == limited] == [(5, None), (2, "stop")]
    assert [(t, f) for r, t, f in seen if r == short] == [(5, None), (6, "length")]
    cache, covered = llama.finish_row(stopping)
    assert token_bytes.to_ids(covered)[1:] == [5, 6, 2]
    assert llama.cache_tokens(cache) == 12


@pytest.mark.parametrize("kind", ["llama", "llama4"])
def test_fault_in_a_step_loses_its_rows_and_nothing_else(
    engine_of: EngineOf, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault loses the rows that were decoding; a finished row keeps its cache, and the lane serves the next one."""
    engine = engine_of(kind)
    done = start(engine, prompt(9), 1)
    steps(engine)
    lost = [start(engine, prompt(n, n)) for n in (5, 20)]

    def broken(*args: Any, **kwargs: Any) -> mx.array:
        raise RuntimeError("device lost")

    steps(engine)
    real = type(engine._model).__call__
    monkeypatch.setattr(type(engine._model), "__call__", broken)
    assert engine.decode_step() == [RowFailed(row, "RuntimeError: device lost") for row in lost]
    with pytest.raises(RuntimeError, match="device lost"):
        engine.start_row(engine.new_cache(), 7, b"", SamplingParams(), 4)
    monkeypatch.setattr(type(engine._model), "__call__", real)
    assert engine.rows() == 1
    cache, _ = engine.finish_row(done)
    assert engine.cache_tokens(cache) == 10
    assert engine.live_bytes() == 0
    assert alone(engine, prompt(20, 20)) == run_row(engine, start(engine, prompt(20, 20)))


def test_fault_while_joining_loses_the_batch_cleanly(llama: MlxEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a row breaks the batch it joins, it raises, the others are reported lost once, and the lane goes on."""
    rows = [start(llama, prompt(n, n)) for n in (5, 20)]
    steps(llama)

    def broken(self: Any, other: Any) -> None:
        raise MemoryError("no room to join")

    monkeypatch.setattr("mlxcel.engine.lanes.GenerationBatch.extend", broken)
    with pytest.raises(MemoryError):
        start(llama, prompt(9))
    monkeypatch.undo()
    assert llama.decode_step() == [RowFailed(row, "MemoryError: no room to join") for row in rows]
    assert (llama.decode_step(), llama.rows(), llama.live_bytes()) == ([], 0, 0)
    assert alone(llama, prompt(20, 20))


@pytest.mark.parametrize("kind", ["llama", "llama4"])
def test_random_rows_depend_on_their_seed_only(engine_of: EngineOf, kind: str) -> None:
    """A seeded row draws the same tokens alone and in a batch; another seed draws others."""
    engine = engine_of(kind)
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, seed=1),
        SamplingParams(temperature=1.0, seed=2),
        SamplingParams(),
    ]
    expected = [alone(engine, prompt(20), 10, p) for p in params]
    rows = [start(engine, prompt(20), 10, p) for p in params]
    together: dict[int, list[int]] = {row: [] for row in rows}
    for item in steps(engine, 10):
        assert isinstance(item, StepToken)
        together[item.row].append(item.token)
    assert list(together.values()) == expected
    assert len({tuple(answer) for answer in expected}) == 4


def test_unseeded_rows_differ(llama: MlxEngine) -> None:
    """Without a seed two rows of the same prompt draw different tokens."""
    params = SamplingParams(temperature=1.5)
    assert alone(llama, prompt(20), 12, params) != alone(llama, prompt(20), 12, params)


def test_penalties_and_bias_change_the_choice(llama: MlxEngine) -> None:
    """A bias forces or bans a token; penalties look at prompt and answer; each applies to its own row only."""
    plain = alone(llama, prompt(30), 10)
    start(llama, prompt(30), 10)
    assert alone(llama, prompt(30), 10, SamplingParams(logit_bias={77: 100.0})) == [77] * 10
    assert plain[0] not in alone(llama, prompt(30), 10, SamplingParams(logit_bias={plain[0]: -100.0}))
    banned = SamplingParams(presence_penalty=1e4, repetition_context=64)
    answer = alone(llama, prompt(30), 10, banned)
    assert len(set(answer)) == 10
    assert not set(answer) & set(prompt(30))
    forced = SamplingParams(logit_bias={77: 50.0, 78: 49.0}, frequency_penalty=2.0)
    assert set(alone(llama, prompt(30), 6, forced)) == {77, 78}
    repeated = SamplingParams(logit_bias={77: 100.0, 78: 90.0}, repetition_penalty=2.0)
    assert alone(llama, prompt(30), 2, repeated) == [77, 78]


@pytest.mark.parametrize("kind", ["llama", "llama4"])
def test_logprobs_belong_to_the_token(engine_of: EngineOf, kind: str) -> None:
    """The reported log-probability is the model's for that token; the likeliest come first; none unless asked."""
    engine = engine_of(kind)
    ids = prompt(20)
    row = start(engine, ids, 3, SamplingParams(logprobs=4))
    start(engine, ids, 3)
    first, other = [item for item in steps(engine) if isinstance(item, StepToken)]
    assert first.row == row
    logits = next_logits(engine, prefill(engine, ids[:-1]), ids[-1])
    expected = logits - mx.logsumexp(logits)
    assert first.logprob == pytest.approx(expected[first.token].item(), abs=1e-4)
    assert first.top[0] == (first.token, first.logprob)
    assert [score for _, score in first.top] == sorted((score for _, score in first.top), reverse=True)
    assert len(first.top) == 4
    assert (other.logprob, other.top) == (None, ())


def test_top_k_and_top_p_limit_what_is_drawn(llama: MlxEngine) -> None:
    """With one candidate left by top-k, top-p or min-p, sampling is greedy whatever the temperature."""
    plain = alone(llama, prompt(30), 8)
    for params in (
        SamplingParams(temperature=5.0, top_k=1),
        SamplingParams(temperature=5.0, top_p=1e-9),
        SamplingParams(temperature=5.0, min_p=1.0),
        SamplingParams(temperature=5.0, top_k=100_000, min_p=1.0),
    ):
        assert alone(llama, prompt(30), 8, params) == plain


def test_order_of_requests_does_not_matter(engine_of: EngineOf) -> None:
    """Greedy answers are the same whatever was served before (B019)."""
    engine = engine_of("qwen3_next")
    prompts = [prompt(n, n) for n in (12, 40, 25)]
    first = [alone(engine, ids) for ids in prompts]
    assert [alone(engine, ids) for ids in reversed(prompts)] == first[::-1]


def test_reserved_room_lives_on_in_a_batch_of_one(llama: MlxEngine) -> None:
    """Joining an empty lane copies nothing: the row goes on in its own buffers, room included."""
    ids = prompt(33)
    piece = llama.copy_rows(prefill(llama, ids[:-1]), 0, 32)
    cache = llama.assemble([(piece, 0, 32)], None, 600)
    bytes_before = sum(layer.nbytes for layer in cache.layers)
    row = start(llama, ids, 300, SamplingParams(forced_tokens=(9,) * 300), cache)
    assert llama.live_bytes() == bytes_before
    assert run_row(llama, row) == [9] * 300
    assert llama.live_bytes() == bytes_before


def test_live_bytes_follow_the_rows(llama: MlxEngine) -> None:
    """Live bytes are rows times the longest length, and nothing once all rows are gone."""
    assert llama.live_bytes() == 0
    rows = [start(llama, prompt(20), 30), start(llama, prompt(300), 30)]
    steps(llama)
    assert llama.live_bytes() >= 2 * 300 * llama.facts.kv_bytes_per_token
    for row in rows:
        llama.drop_row(row)
    assert (llama.rows(), llama.live_bytes()) == (0, 0)
