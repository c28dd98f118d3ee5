"""POST /v1/chat/completions: from messages to a generation, and back to a whole answer or chunks."""

import asyncio
import time
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.runtime import ChatRuntime, PreparedChat
from mlxcel.chat.templates import TemplateMissing, TemplateRefused
from mlxcel.http.bodies import read_json
from mlxcel.http.chat_answer import ChatAnswer, ChatWriter
from mlxcel.http.context import HttpContext, context_of, tenant_of
from mlxcel.http.errors import ApiError
from mlxcel.http.messages import checked_kwargs, checked_tool_choice, checked_tools, template_messages
from mlxcel.http.params import cache_options, cache_scope, check_common, sampling, stop_strings, token_limit
from mlxcel.http.respond import answer_stream, answer_whole
from mlxcel.http.schemas import ChatBody, ProbeBody, cache_field
from mlxcel.ports import GenerateRequest, ModelFacts


def _check(body: ChatBody) -> None:
    """Refuse what chat can't honour. Raises ApiError."""
    check_common(body)
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise ApiError(
            "unsupported", f"response_format of type {str(kind)[:40]!r} is not supported.", param="response_format"
        )
    if body.functions is not None or body.function_call is not None:
        raise ApiError("unsupported", "functions are not supported; use tools.", param="functions")
    if body.audio is not None or any(mode != "text" for mode in body.modalities or ()):
        raise ApiError("unsupported", "Only text can be generated.", param="modalities")


def _logprobs(body: ChatBody) -> int:
    """Return how many likeliest tokens are wanted, -1 for none. Raises ApiError."""
    if body.top_logprobs is None:
        return 0 if body.logprobs else -1
    if not body.logprobs:
        raise ApiError("invalid_request", "top_logprobs needs logprobs to be true.", param="top_logprobs")
    if not 0 <= body.top_logprobs <= 20:
        raise ApiError("invalid_request", "top_logprobs must be between 0 and 20.", param="top_logprobs")
    return body.top_logprobs


def render(body: ChatBody | ProbeBody, runtime: ChatRuntime) -> PreparedChat:
    """Check messages and tools, render and encode; runs on a worker thread. Raises ApiError."""
    tools = checked_tools(body.tools)
    choice = checked_tool_choice(body.tool_choice, tools)
    kwargs = checked_kwargs(cache_field(body, "chat_template_kwargs"))
    effort = getattr(body, "reasoning_effort", None)
    if effort and runtime.knows_kwarg("reasoning_effort"):
        kwargs.setdefault("reasoning_effort", effort)
    try:
        return runtime.render_chat(template_messages(body.messages or []), tools, choice, kwargs)
    except TemplateRefused as fault:
        message = f"The chat template refuses these messages: {fault}"
        raise ApiError("invalid_request", message[:500], param="messages") from fault
    except TemplateMissing as fault:
        raise ApiError("unsupported", str(fault), param="messages") from fault


def _max_tokens(body: ChatBody) -> tuple[int | None, str]:
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens, "max_completion_tokens"
    return body.max_tokens, "max_tokens"


async def _prepare(
    context: HttpContext, request: Request[Any, Any, Any], body: ChatBody, facts: ModelFacts, runtime: ChatRuntime
) -> tuple[GenerateRequest, PreparedChat]:
    arrived_s = time.monotonic()
    _check(body)
    params = context.test_tokens(request, sampling(body, facts, context.settings, _logprobs(body)))
    stops = stop_strings(body, context.settings.max_stop_strings)
    options = cache_options(body)
    chat = await asyncio.to_thread(render, body, runtime)
    asked, asked_param = _max_tokens(body)
    limit = token_limit(asked, asked_param, chat.prompt_tokens, facts, context.settings, "messages")
    return (
        GenerateRequest(
            request_id=context.claim_id(request, "chatcmpl-"),
            tokens=chat.tokens,
            params=params,
            max_tokens=limit,
            scope=cache_scope(body, chat.template_sig, tenant_of(request)),
            options=options,
            boundaries=chat.boundaries.positions(chat.prompt_tokens),
            shared=chat.boundaries.shared(),
            next_turn=chat.next_turn,
            text=runtime.assembler(stops, chat),
            arrived_s=arrived_s,
        ),
        chat,
    )


@post(["/v1/chat/completions", "/chat/completions"], status_code=200, summary="Answer a chat, streamed or whole")
async def chat_completions(request: Request[Any, Any, Any]) -> ASGIResponse:
    """OpenAI chat completions. The body is read here, so that every fault in it gets OpenAI's error shape."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, ChatBody, context.settings.max_json_depth)
    generate, chat = await _prepare(context, request, body, facts, runtime)
    head = {
        "id": generate.request_id,
        "created": int(time.time()),
        "model": facts.name,
        "system_fingerprint": f"fp_{facts.fingerprint[:12]}",
    }
    with_logprobs = generate.params.logprobs >= 0
    parser = runtime.output_parser(chat, parallel_calls=body.parallel_tool_calls is not False)
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        writer = ChatWriter(head, parser, runtime.tokenizer, with_logprobs, include_usage)
        return await answer_stream(context, request, generate, writer)
    return await answer_whole(context, request, generate, ChatAnswer(head, parser, runtime.tokenizer, with_logprobs))
