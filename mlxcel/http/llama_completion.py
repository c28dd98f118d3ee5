"""POST /completion: llama-server's own route. Its stream has no [DONE]; the last frame is the whole object without text.

Shape: llama.cpp `tools/server/README.md`, "POST /completion".
"""

import asyncio
import time
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.runtime import ChatRuntime
from mlxcel.chat.signature import RAW_PROMPT_SIGNATURE
from mlxcel.chat.tokenizer import Tokenizer
from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, context_of, tenant_of
from mlxcel.http.errors import ApiError
from mlxcel.http.openai_completions import encode_prompt
from mlxcel.http.params import cache_options, cache_scope, sampling, stop_strings, token_limit
from mlxcel.http.respond import answer_stream, answer_whole
from mlxcel.http.schemas import NativeCompletionBody, SamplingFields
from mlxcel.http.sse import EventWriter, data_event
from mlxcel.ports import Delta, Finished, GenerateRequest, ModelFacts


def _check(body: NativeCompletionBody) -> None:
    """Refuse what this route can't honour. Raises ApiError."""
    for name in ("return_progress", "verbose", "grammar", "json_schema"):
        if getattr(body, name) not in (None, False, ""):
            raise ApiError("unsupported", f"{name} is not supported.", param=name)
    for name in ("n", "n_cmpl"):
        if getattr(body, name) not in (None, 1):
            raise ApiError("unsupported", f"{name} must be 1.", param=name)
    if body.n_predict is not None and not (body.n_predict == -1 or 1 <= body.n_predict < 2**31):
        raise ApiError("invalid_request", "n_predict must be -1 or at least 1.", param="n_predict")
    if body.n_probs is not None and not 0 <= body.n_probs <= 20:
        raise ApiError("invalid_request", "n_probs must be between 0 and 20.", param="n_probs")


def _bias(raw: Any, vocab_size: int) -> dict[str, Any] | None:
    """llama-server takes pairs [id, bias] besides an object; false forbids the token. Raises ApiError."""
    if raw is None or isinstance(raw, dict):
        return raw
    biases: dict[str, Any] = {}
    for pair in raw:
        if len(pair) != 2 or isinstance(pair[0], bool) or not isinstance(pair[0], int):
            raise ApiError("invalid_request", "logit_bias takes pairs of token id and number.", param="logit_bias")
        value = -100 if pair[1] is False else pair[1]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ApiError("invalid_request", "logit_bias takes pairs of token id and number.", param="logit_bias")
        biases[str(pair[0])] = value
    return biases


def _shared_fields(body: NativeCompletionBody, facts: ModelFacts) -> SamplingFields:
    return SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_bias(body.logit_bias, facts.vocab_size),
        seed=body.seed,
        stop=body.stop,
    )


async def _prepare(
    context: HttpContext,
    request: Request[Any, Any, Any],
    body: NativeCompletionBody,
    facts: ModelFacts,
    runtime: ChatRuntime,
) -> GenerateRequest:
    arrived_s = time.monotonic()
    _check(body)
    fields = _shared_fields(body, facts)
    wanted = body.n_probs or 0
    params = context.test_tokens(request, sampling(fields, facts, context.settings, wanted or -1))
    stops = stop_strings(fields, context.settings.max_stop_strings)
    options = cache_options(body)
    tokens = await asyncio.to_thread(encode_prompt, body.prompt, facts, runtime)
    limit = token_limit(body.n_predict, "n_predict", len(tokens) // 4, facts, context.settings, "prompt")
    return GenerateRequest(
        request_id=context.claim_id(request, "cmpl-"),
        tokens=tokens,
        params=params,
        max_tokens=limit,
        scope=cache_scope(body, RAW_PROMPT_SIGNATURE, tenant_of(request)),
        options=options,
        text=runtime.assembler(stops),
        arrived_s=arrived_s,
    )


def timings(item: Finished) -> dict[str, Any]:
    """Return llama-server's timings; `cache_n` + `prompt_n` is the whole prompt."""
    prompt_n = item.prompt_tokens - item.cached_tokens
    return {
        "cache_n": item.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": item.prefill_s * 1000,
        "prompt_per_token_ms": item.prefill_s * 1000 / max(1, prompt_n),
        "prompt_per_second": prompt_n / item.prefill_s if item.prefill_s > 0 else 0.0,
        "predicted_n": item.completion_tokens,
        "predicted_ms": item.decode_s * 1000,
        "predicted_per_token_ms": item.decode_s * 1000 / max(1, item.completion_tokens),
        "predicted_per_second": item.completion_tokens / item.decode_s if item.decode_s > 0 else 0.0,
    }


class NativeAnswer(EventWriter):
    """A whole object, or frames whose last one is that object with empty text."""

    def __init__(
        self, facts: ModelFacts, request: GenerateRequest, prompt: Any, tokenizer: Tokenizer, ids: bool
    ) -> None:
        self._facts = facts
        self._request = request
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._with_ids = ids
        self._text: list[str] = []
        self._ids: list[int] = []
        self._probabilities: list[dict[str, Any]] = []

    def delta(self, item: Delta) -> list[bytes]:
        """Take text that became certain; return its frame."""
        self._text.append(item.text)
        self._ids += item.tokens
        probabilities = [self._probability(*row) for row in item.logprobs]
        self._probabilities += probabilities
        if not item.text and not probabilities:
            return []
        frame = {"index": 0, "content": item.text, "tokens": list(item.tokens), "stop": False, "id_slot": 0}
        frame["tokens_predicted"], frame["tokens_evaluated"] = len(self._ids), len(self._request.tokens) // 4
        if probabilities:
            frame["completion_probabilities"] = probabilities
        return [data_event(frame)]

    def finished(self, item: Finished) -> list[bytes]:
        """Return the last frame."""
        return [data_event(self._whole(item, "", []))]

    def failed(self, fault: ApiError) -> list[bytes]:
        """Return the error as data."""
        return [data_event(fault.body())]

    def answer(self, item: Finished) -> dict[str, Any]:
        """Return the body."""
        return self._whole(item, "".join(self._text), self._ids if self._with_ids else [])

    def _whole(self, item: Finished, text: str, ids: list[int]) -> dict[str, Any]:
        ended = "limit" if item.finish_reason == "length" else "word" if item.stop_string else "eos"
        whole = {
            "index": 0,
            "content": text,
            "tokens": ids,
            "id_slot": 0,
            "stop": True,
            "model": self._facts.name,
            "tokens_predicted": item.completion_tokens,
            "tokens_evaluated": item.prompt_tokens,
            "generation_settings": self._settings(),
            "prompt": self._prompt,
            "has_new_line": "\n" in "".join(self._text),
            "truncated": False,
            "stop_type": ended,
            "stopping_word": item.stop_string,
            "tokens_cached": item.cached_tokens,
            "timings": timings(item),
        }
        if self._probabilities:
            whole["completion_probabilities"] = self._probabilities
        return whole

    def _settings(self) -> dict[str, Any]:
        params = self._request.params
        return {
            "n_predict": self._request.max_tokens,
            "seed": params.seed if params.seed is not None else -1,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "repeat_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }

    def _probability(self, token: int, logprob: float, top: tuple[tuple[int, float], ...]) -> dict[str, Any]:
        return {
            **self._one(token, logprob),
            "top_logprobs": [self._one(other, value) for other, value in top],
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.bytes_of(token)
        return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": logprob}


@post(["/completion", "/completions"], status_code=200, summary="Continue a prompt in llama-server's own shape")
async def native_completion(request: Request[Any, Any, Any]) -> ASGIResponse:
    """llama-server's native completion, streamed or whole."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, NativeCompletionBody, context.settings.max_json_depth)
    generate = await _prepare(context, request, body, facts, runtime)
    builder = NativeAnswer(facts, generate, body.prompt, runtime.tokenizer, bool(body.return_tokens))
    if body.stream:
        return await answer_stream(context, request, generate, builder)
    return await answer_whole(context, request, generate, builder)
