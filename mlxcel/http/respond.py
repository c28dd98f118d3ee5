"""Run one generation to an HTTP answer: streamed or whole, with every way to end in one place."""

import time
from typing import Any, Protocol

from litestar import Request
from litestar.response.base import ASGIResponse

from mlxcel.http.context import HttpContext, caller_of
from mlxcel.http.errors import ApiError, as_api_error, json_reply
from mlxcel.http.generation import ClientGone, Generation
from mlxcel.http.sse import EventStream, EventWriter
from mlxcel.ports import Delta, Finished, GenerateRequest, Overloaded, Progress, StreamItem


class AnswerBuilder(Protocol):
    """How one API spells a whole answer."""

    def delta(self, item: Delta) -> Any:
        """Take text that became certain."""
        ...

    def answer(self, item: Finished) -> dict[str, Any]:
        """Return the body."""
        ...


def usage_of(finished: Finished) -> dict[str, Any]:
    """Return OpenAI's usage; cached_tokens is there even when it is 0."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def _id_headers(request_id: str) -> dict[str, str]:
    """OpenAI's client reads one name of the header, Anthropic's the other."""
    return {"x-request-id": request_id, "request-id": request_id}


async def _first_items(generation: Generation, wait_s: float) -> list[StreamItem]:
    """Return what comes up to the first text, at most `wait_s` long. Raises what `Generation.next` raises."""
    items: list[StreamItem] = []
    ends = time.monotonic() + wait_s
    while (left := ends - time.monotonic()) > 0:
        item = await generation.next(left)
        if item is not None:
            items.append(item)
        if item is None or not isinstance(item, Progress):
            break
    return items


async def answer_whole(
    context: HttpContext, request: Request[Any, Any, Any], generate: GenerateRequest, builder: AnswerBuilder
) -> ASGIResponse:
    """Return the whole answer. A client that leaves cancels the generation at once."""
    finished: Finished | None = None
    outcome = "failed"
    context.counters.started()
    try:
        async with Generation(context.service, generate, request.receive) as generation:
            finished = await generation.run(builder.delta)
    except ClientGone:
        outcome = "abandoned"
        return json_reply(ApiError("cancelled", "The client closed the connection.").body(), 499)
    except Overloaded as fault:
        raise as_api_error(fault) from fault
    finally:
        context.counters.ended(finished, outcome, caller_of(request))
        context.release_id(generate.request_id)
    headers = {**_id_headers(generate.request_id), "x-mlxcel-cache": finished.source}
    return json_reply(builder.answer(finished), headers=headers)


async def answer_stream(
    context: HttpContext, request: Request[Any, Any, Any], generate: GenerateRequest, writer: EventWriter
) -> ASGIResponse:
    """Return a stream. A fault before the first text is an HTTP error, not a broken 200."""
    settings = context.settings

    def ended(finished: Finished | None, outcome: str) -> None:
        context.counters.ended(finished, outcome, caller_of(request))
        context.release_id(generate.request_id)

    context.counters.started()
    generation = Generation(context.service, generate, request.receive)
    try:
        await generation.__aenter__()
        try:
            first = await _first_items(generation, settings.first_item_wait_s)
        except BaseException:
            await generation.__aexit__(None, None, None)
            raise
    except ClientGone:
        ended(None, "abandoned")
        return json_reply(ApiError("cancelled", "The client closed the connection.").body(), 499)
    except BaseException as fault:
        ended(None, "failed")
        if isinstance(fault, Overloaded):
            raise as_api_error(fault) from fault
        raise
    headers = _id_headers(generate.request_id)
    return EventStream(generation, first, writer, settings.ping_interval_s, headers, ended)
