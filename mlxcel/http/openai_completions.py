"""POST /v1/completions: a prompt as text or token ids, continued.

Text is encoded with one BOS where the model wants one (never two); token ids are fed exactly as given.
"""

import asyncio
import time
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.runtime import ChatRuntime
from mlxcel.chat.signature import RAW_PROMPT_SIGNATURE
from mlxcel.chat.tokenizer import Tokenizer, pack_tokens
from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, context_of, tenant_of
from mlxcel.http.errors import ApiError
from mlxcel.http.logprobs import CompletionLogprobs, merged
from mlxcel.http.messages import prompt_ids
from mlxcel.http.params import cache_options, cache_scope, check_common, sampling, stop_strings, token_limit
from mlxcel.http.respond import answer_stream, answer_whole, usage_of
from mlxcel.http.schemas import CompletionBody
from mlxcel.http.sse import DONE, EventWriter, data_event
from mlxcel.ports import Delta, Finished, GenerateRequest, ModelFacts


def _check(body: CompletionBody) -> None:
    """Refuse what completions can't honour. Raises ApiError."""
    check_common(body)
    if body.echo:
        raise ApiError("unsupported", "echo is not supported.", param="echo")
    if body.suffix:
        raise ApiError("unsupported", "suffix is not supported.", param="suffix")
    if body.best_of is not None and body.best_of != 1:
        raise ApiError("unsupported", "best_of must be 1.", param="best_of")
    if body.logprobs is not None and not 0 <= body.logprobs <= 20:
        raise ApiError("invalid_request", "logprobs must be between 0 and 20.", param="logprobs")


def encode_prompt(raw: Any, facts: ModelFacts, runtime: ChatRuntime) -> bytes:
    """Return the prompt's tokens; runs on a worker thread. Raises ApiError."""
    prompt = prompt_ids(raw, facts.vocab_size)
    tokens = runtime.encode_prompt(prompt) if isinstance(prompt, str) else pack_tokens(prompt)
    if not tokens:
        raise ApiError("invalid_request", "prompt has no tokens.", param="prompt")
    return tokens


async def _prepare(
    context: HttpContext, request: Request[Any, Any, Any], body: CompletionBody, facts: ModelFacts, runtime: ChatRuntime
) -> GenerateRequest:
    arrived_s = time.monotonic()
    _check(body)
    wanted = -1 if body.logprobs is None else body.logprobs
    params = context.test_tokens(request, sampling(body, facts, context.settings, wanted))
    stops = stop_strings(body, context.settings.max_stop_strings)
    options = cache_options(body)
    tokens = await asyncio.to_thread(encode_prompt, body.prompt, facts, runtime)
    limit = token_limit(body.max_tokens, "max_tokens", len(tokens) // 4, facts, context.settings, "prompt")
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


class CompletionAnswer:
    """Collects a whole completion."""

    def __init__(self, head: dict[str, Any], tokenizer: Tokenizer, with_token_ids: bool) -> None:
        self._head = head
        self._token_ids: list[int] | None = [] if with_token_ids else None
        self._text: list[str] = []
        self._logprobs = CompletionLogprobs(tokenizer)
        self._rows: list[dict[str, Any]] = []

    def delta(self, item: Delta) -> None:
        """Take text that became certain."""
        self._text.append(item.text)
        if self._token_ids is not None:
            self._token_ids += item.tokens
        if rows := self._logprobs.take(item):
            self._rows.append(rows)

    def answer(self, item: Finished) -> dict[str, Any]:
        """Return the body."""
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": merged(self._rows),
            "finish_reason": item.finish_reason,
        }
        if self._token_ids is not None:
            choice["token_ids"] = self._token_ids
        return {**self._head, "choices": [choice], "usage": usage_of(item)}


class CompletionWriter(EventWriter):
    """Writes a completion as chunks, all with one id."""

    def __init__(self, head: dict[str, Any], tokenizer: Tokenizer, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._logprobs = CompletionLogprobs(tokenizer)

    def delta(self, item: Delta) -> list[bytes]:
        """Return the chunk of text that became certain, none for no text."""
        rows = self._logprobs.take(item)
        return [self._chunk(item.text, rows, None)] if item.text or rows else []

    def finished(self, item: Finished) -> list[bytes]:
        """Return the chunk with the finish_reason, usage if asked for, and [DONE]."""
        events = [self._chunk("", None, item.finish_reason)]
        if self._include_usage:
            events.append(data_event({**self._head, "choices": [], "usage": usage_of(item)}))
        return [*events, DONE]

    def failed(self, fault: ApiError) -> list[bytes]:
        """Return the error as data; [DONE] does not follow."""
        return [data_event(fault.body())]

    def _chunk(self, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return data_event({**self._head, "choices": [choice], **usage})


@post("/v1/completions", status_code=200, summary="Continue a prompt, streamed or whole")
async def completions(request: Request[Any, Any, Any]) -> ASGIResponse:
    """OpenAI text completions."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, CompletionBody, context.settings.max_json_depth)
    generate = await _prepare(context, request, body, facts, runtime)
    head = {
        "id": generate.request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": facts.name,
        "system_fingerprint": f"fp_{facts.fingerprint[:12]}",
    }
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        return await answer_stream(context, request, generate, CompletionWriter(head, runtime.tokenizer, include_usage))
    return await answer_whole(
        context, request, generate, CompletionAnswer(head, runtime.tokenizer, bool(body.return_token_ids))
    )
