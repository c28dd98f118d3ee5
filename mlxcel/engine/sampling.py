"""How the next token is chosen: filters, penalties, a random stream of its own for each row.

Hooks of mlx-lm's `GenerationBatch`: a sampler maps log-probabilities [1, vocab] to a token [1]; a processor maps
(context tokens [n], logits [1, vocab]) to logits [1, vocab]. Filters work on the untempered distribution, as in
mlx-lm's `sample_utils`; penalties look back over one window of prompt and answer, as llama-server's repeat-last-n.
"""

import math
import secrets
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxcel.ports import SamplingParams

Sampler = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]


def greedy(logprobs: mx.array) -> mx.array:
    """Return the arg max; one shared function, so that a greedy batch is sampled in one call."""
    return mx.argmax(logprobs, axis=-1)


def make_sampler(params: SamplingParams) -> Sampler:
    """Return the row's sampler; random ones own their key, so a row's tokens don't depend on its batch mates."""
    sampler = greedy if params.temperature <= 0 else _random_sampler(params)
    return _forced(params.forced_tokens, sampler) if params.forced_tokens else sampler


def _random_sampler(params: SamplingParams) -> Sampler:
    key = mx.random.key(secrets.randbits(63) if params.seed is None else params.seed)

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal key
        key, now = mx.random.split(key)
        order = mx.argsort(-logprobs, axis=-1)
        ranked = mx.take_along_axis(logprobs, order, axis=-1).astype(mx.float32)
        drawn = mx.random.categorical(_filtered(ranked, params) / params.temperature, key=now)
        return mx.take_along_axis(order, drawn[:, None], axis=-1)[:, 0].astype(mx.uint32)

    return sample


def _filtered(ranked: mx.array, params: SamplingParams) -> mx.array:
    """Mask what top-k, top-p and min-p exclude; `ranked` is [1, vocab], likeliest first. The first always stays."""
    rank = mx.arange(ranked.shape[-1])
    keep = rank < (params.top_k or ranked.shape[-1])
    if 0 < params.top_p < 1:
        probabilities = mx.exp(ranked)
        before = mx.cumsum(probabilities, axis=-1) - probabilities
        keep = keep & (before < params.top_p)
    if params.min_p > 0:
        keep = keep & (ranked >= ranked[:, :1] + math.log(params.min_p))
    return mx.where(keep | (rank == 0), ranked, -mx.inf)


def _forced(tokens: tuple[int, ...], then: Sampler) -> Sampler:
    calls = iter(tokens)

    def sample(logprobs: mx.array) -> mx.array:
        token = next(calls, None)
        return then(logprobs) if token is None else mx.array([token], dtype=mx.uint32)

    return sample


def make_processors(params: SamplingParams) -> list[Processor]:
    """Return the row's logit processors; an empty list costs nothing."""
    processors: list[Processor] = []
    if params.logit_bias:
        processors.append(_bias(params.logit_bias))
    if (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0):
        processors.append(_penalties(params))
    return processors


def _bias(bias: dict[int, float]) -> Processor:
    tokens, values = mx.array(list(bias)), mx.array(list(bias.values()))
    return lambda _, logits: logits.at[:, tokens].add(values.astype(logits.dtype))


def _penalties(params: SamplingParams) -> Processor:
    repeat = params.repetition_penalty

    def process(context: mx.array, logits: mx.array) -> mx.array:
        recent = context[-params.repetition_context :]
        counts = mx.zeros(logits.shape[-1:], dtype=logits.dtype).at[recent].add(1)
        seen = counts > 0
        logits = mx.where(seen, mx.where(logits > 0, logits / repeat, logits * repeat), logits)
        return logits - params.presence_penalty * seen - params.frequency_penalty * counts

    return process


def top_logprobs(logprobs: mx.array, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest (token, log-probability) of an evaluated [vocab] array, likeliest first."""
    if count <= 0:
        return ()
    values = logprobs.astype(mx.float32)
    likeliest = mx.argsort(-values)[:count]
    tokens: Any = likeliest.tolist()
    scores: Any = values[likeliest].tolist()
    return tuple(zip(tokens, scores, strict=True))


def logprob_of(logprobs: mx.array, token: int) -> float:
    """Return the log-probability of one token of an evaluated [vocab] array."""
    value: Any = logprobs[token].item()
    return float(value)
