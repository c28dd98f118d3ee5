"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same generation port."""

import asyncio
import time
from typing import Any

import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.runtime import ChatRuntime, PreparedChat
from mlxcel.chat.templates import TemplateMissing, TemplateRefused
from mlxcel.http.anthropic_answer import MessageAnswer, MessageWriter
from mlxcel.http.anthropic_messages import Conversation, conversation
from mlxcel.http.anthropic_schemas import CountBody, MessagesBody, ToolChoice
from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, context_of, tenant_of
from mlxcel.http.errors import ApiError, json_reply
from mlxcel.http.messages import checked_kwargs
from mlxcel.http.params import cache_options, cache_scope, sampling, stop_strings, token_limit
from mlxcel.http.respond import answer_stream, answer_whole
from mlxcel.http.schemas import SamplingFields, cache_field
from mlxcel.ports import GenerateRequest, ModelFacts


def _tool_choice(choice: ToolChoice | None) -> str | None:
    """Return "auto", "none" or None. Forcing a call is refused, since nothing here could keep that promise."""
    if choice is None or choice.type in ("auto", "none"):
        return None if choice is None else choice.type
    if choice.type in ("any", "tool"):
        raise ApiError("unsupported", f"tool_choice of type {choice.type} is not supported.", param="tool_choice.type")
    raise ApiError("invalid_request", f"Unknown tool_choice: {choice.type[:40]!r}.", param="tool_choice.type")


def _kwargs(body: CountBody, runtime: ChatRuntime) -> dict[str, Any]:
    kwargs = checked_kwargs(cache_field(body, "chat_template_kwargs"))
    if body.thinking is not None:
        if body.thinking.type not in ("enabled", "disabled", "adaptive"):
            raise ApiError(
                "invalid_request", f"Unknown thinking type: {body.thinking.type[:40]!r}.", param="thinking.type"
            )
        if runtime.knows_kwarg("enable_thinking"):
            kwargs.setdefault("enable_thinking", body.thinking.type != "disabled")
    return kwargs


def _render(body: CountBody, runtime: ChatRuntime) -> tuple[Conversation, PreparedChat]:
    """Check, convert, render and encode; runs on a worker thread. Raises ApiError."""
    talk = conversation(body)
    try:
        chat = runtime.render_chat(
            talk.messages, talk.tools, _tool_choice(body.tool_choice), _kwargs(body, runtime), talk.marks
        )
    except TemplateRefused as fault:
        message = f"The chat template refuses these messages: {fault}"
        raise ApiError("invalid_request", message[:500], param="messages") from fault
    except TemplateMissing as fault:
        raise ApiError("unsupported", str(fault), param="messages") from fault
    return talk, chat


def _marked_tokens(talk: Conversation, chat: PreparedChat) -> int:
    """Return where the last mark ends, in tokens of the prompt; 0 without marks. Tools end where the system prompt does."""
    ends = [*chat.boundaries.marked, chat.boundaries.system if talk.tools_marked else 0]
    return min(max(ends), chat.prompt_tokens - 1)


def _shared_fields(body: MessagesBody) -> SamplingFields:
    """Return the fields that all generating routes check, under the names that they share."""
    return SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        cache_prompt=cache_field(body, "cache_prompt"),
        cache_no_read=cache_field(body, "cache_no_read"),
        cache_no_store=cache_field(body, "cache_no_store"),
        cache_ttl_s=cache_field(body, "cache_ttl_s"),
        cache_salt=cache_field(body, "cache_salt"),
        prompt_cache_key=cache_field(body, "prompt_cache_key"),
        user=body.metadata.user_id if body.metadata else None,
    )


async def _prepare(
    context: HttpContext, request: Request[Any, Any, Any], body: MessagesBody, facts: ModelFacts, runtime: ChatRuntime
) -> tuple[GenerateRequest, PreparedChat, int]:
    arrived_s = time.monotonic()
    fields = _shared_fields(body)
    params = context.test_tokens(request, sampling(fields, facts, context.settings, -1))
    stops = stop_strings(fields, context.settings.max_stop_strings, "stop_sequences")
    talk, chat = await asyncio.to_thread(_render, body, runtime)
    options = cache_options(fields)
    if options.ttl_s is None and talk.ttl_s is not None:
        options = msgspec.structs.replace(options, ttl_s=talk.ttl_s)
    limit = token_limit(body.max_tokens, "max_tokens", chat.prompt_tokens, facts, context.settings, "messages")
    generate = GenerateRequest(
        request_id=context.claim_id(request, "msg_"),
        tokens=chat.tokens,
        params=params,
        max_tokens=limit,
        scope=cache_scope(fields, chat.template_sig, tenant_of(request)),
        options=options,
        boundaries=chat.boundaries.positions(chat.prompt_tokens),
        shared=chat.boundaries.shared(),
        next_turn=chat.next_turn,
        text=runtime.assembler(stops, chat),
        arrived_s=arrived_s,
    )
    return generate, chat, _marked_tokens(talk, chat) if options.store else 0


@post(["/v1/messages", "/messages"], status_code=200, summary="Answer a conversation in Anthropic's shape")
async def messages(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Anthropic's Messages API, streamed or whole."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, MessagesBody, context.settings.max_json_depth)
    generate, chat, marked = await _prepare(context, request, body, facts, runtime)
    head = {"id": generate.request_id, "type": "message", "role": "assistant", "model": facts.name}
    one_call = body.tool_choice is not None and bool(body.tool_choice.disable_parallel_tool_use)
    parser = runtime.output_parser(chat, parallel_calls=not one_call)
    if body.stream:
        writer = MessageWriter(head, parser, chat.prompt_tokens, marked)
        return await answer_stream(context, request, generate, writer)
    return await answer_whole(context, request, generate, MessageAnswer(head, parser, marked))


@post(["/v1/messages/count_tokens", "/messages/count_tokens"], status_code=200, summary="Tokens of a conversation")
async def count_tokens(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer {"input_tokens": n} for what /v1/messages would feed; nothing runs."""
    context = context_of(request)
    _, runtime = await context.ready()
    body = await read_json(request, CountBody, context.settings.max_json_depth)
    _, chat = await asyncio.to_thread(_render, body, runtime)
    return json_reply({"input_tokens": chat.prompt_tokens})
