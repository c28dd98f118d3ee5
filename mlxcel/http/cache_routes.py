"""What the cache holds, emptying it, and asking how much of a prompt it would save."""

import asyncio
from typing import Any

from litestar import Request, get, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.signature import RAW_PROMPT_SIGNATURE
from mlxcel.http.bodies import read_json, read_whole
from mlxcel.http.context import caller_of, context_of, tenant_of
from mlxcel.http.errors import ApiError, json_reply
from mlxcel.http.openai_chat import render
from mlxcel.http.openai_completions import encode_prompt
from mlxcel.http.params import cache_scope, tenant_prefix
from mlxcel.http.query import flag
from mlxcel.http.schemas import ProbeBody, ResetBody


@get("/v1/cache/stats", summary="Counts of the prompt cache")
async def cache_stats(request: Request[Any, Any, Any]) -> ASGIResponse:
    """A flat object: the fold over the events of this process. A tenant sees its own entries and requests only.

    The guide's names; `paged_*` is left out, since there is no pool of blocks here whose use could be told, and
    `last_reject_request` (the request's id) stands for its `last_reject_seq_id`.
    """
    context, tenant = context_of(request), tenant_of(request)
    if not tenant:
        return json_reply(await context.ask("stats"))
    held = await context.ask("tenant_stats", tenant_prefix=tenant_prefix(tenant))
    return json_reply({**held, **context.counters.of_tenant(caller_of(request))})


@post(["/v1/cache/reset", "/admin/reset"], status_code=200, summary="Empty the prompt cache")
async def cache_reset(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Drop all entries, a tenant's key those of the tenant; lifetime counters stay.

    Pinned ones stay unless `include_pins` is true, in the query or in a body; pins are the operator's, never a tenant's.
    """
    context, tenant, caller = context_of(request), tenant_of(request), caller_of(request)
    include_pins = flag(request, "include_pins")
    if await read_whole(request):
        include_pins |= (await read_json(request, ResetBody, context.settings.max_json_depth)).include_pins
    if not tenant:
        return json_reply(await context.ask("reset", caller=caller, include_pins=include_pins))
    if include_pins:
        raise ApiError("forbidden", "Pins are the operator's: reset them at /admin/reset.", param="include_pins")
    return json_reply(await context.ask("tenant_reset", tenant_prefix=tenant_prefix(tenant), caller=caller))


@post("/v1/cache/probe", status_code=200, summary="How much of a prompt is cached, without using it")
async def cache_probe(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Takes `messages` or `prompt` as the generating routes do; changes nothing, not even recency."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, ProbeBody, context.settings.max_json_depth)
    if (body.messages is None) == (body.prompt is None):
        raise ApiError("invalid_request", "Give either messages or prompt.", param="messages")
    if body.messages is not None:
        chat = await asyncio.to_thread(render, body, runtime)
        tokens, signature = chat.tokens, chat.template_sig
    else:
        tokens = await asyncio.to_thread(encode_prompt, body.prompt, facts, runtime)
        signature = RAW_PROMPT_SIGNATURE
    scope = cache_scope(body, signature, tenant_of(request))
    found = await context.ask("probe", tokens=tokens, scope=scope)
    return json_reply({"prompt_tokens": len(tokens) // 4, **found})
