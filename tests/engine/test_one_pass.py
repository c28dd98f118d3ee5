"""A prompt's last few tokens run in one pass with the very last: same cache, same answer, one pass over the weights."""

from collections.abc import Callable

import pytest

from mlxcel.core import tokens as token_bytes
from mlxcel.engine.engine import MlxEngine
from mlxcel.ports import CacheScope, GenerateRequest, SamplingParams, StepToken
from mlxcel.service.job import ONE_PASS_TOKENS, Job
from tests.engine.support import KINDS, prefill, prompt, same_content, start, steps

LOGPROBS = SamplingParams(logprobs=512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [2, 7, 33])
def test_one_pass_leaves_the_cache_of_one_chunk(engine_of: Callable[..., MlxEngine], kind: str, left: int) -> None:
    """What a row covers after its first pass is, to the bit, what prefilling the same tokens in one chunk gives."""
    engine, ids = engine_of(kind), prompt(70, left)
    expected = prefill(engine, ids[:-left])
    engine.prefill(expected, token_bytes.from_ids(ids[-left:]))
    row = start(engine, ids, cache=prefill(engine, ids[:-left]))
    cache, covered = engine.finish_row(row)
    assert covered == token_bytes.from_ids(ids[-1:])
    assert engine.cache_tokens(cache) == len(ids)
    assert same_content(engine, cache, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [2, 33, 70])
def test_one_pass_answers_as_two(engine_of: Callable[..., MlxEngine], kind: str, left: int) -> None:
    """The next token's distribution is that of two passes, to rounding, also where nothing at all was covered."""
    engine, ids = engine_of(kind), prompt(70, left)
    tops = []
    for covered in (len(ids) - 1, len(ids) - left):
        row = start(engine, ids, params=LOGPROBS, cache=prefill(engine, ids[:covered]))
        (step,) = steps(engine)
        assert isinstance(step, StepToken), step
        tops.append(dict(step.top))
        engine.drop_row(row)
    assert max(abs(tops[0][token] - tops[1][token]) for token in tops[0]) < 2e-3


def job(length: int, position: int, captures: tuple[int, ...] = ()) -> Job:
    """Return a job of a prompt that is covered up to `position`."""
    request = GenerateRequest("r", token_bytes.from_ids(prompt(length)), SamplingParams(), 8, CacheScope())
    made = Job(request, lambda item: None, 0.0)
    made.position, made.captures = position, dict.fromkeys(captures, "boundary")
    return made


@pytest.mark.parametrize(
    ("length", "position", "captures", "one_pass"),
    [
        (600, 592, (), True),
        (600, 600 - ONE_PASS_TOKENS, (), True),
        (600, 599 - ONE_PASS_TOKENS, (), False),
        (600, 592, (599,), False),
        (600, 592, (595,), False),
        (513, 500, (), True),
        (520, 500, (), False),
        (20, 0, (), True),
        (1, 0, (), True),
    ],
)
def test_few_tokens_join_the_last(length: int, position: int, captures: tuple[int, ...], one_pass: bool) -> None:
    """Few enough tokens, no state to keep on the way, and no line of the chunks' grid between them and the last."""
    made = job(length, position, captures)
    assert made.in_one_pass(made.next_stop(512)) is one_pass
