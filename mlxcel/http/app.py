"""The app factory: routes, limits, guard, and one exception handler."""

from typing import Any

from litestar import Litestar, Request, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.response.base import ASGIResponse

from mlxcel.http import admin, admin_entries, admin_history
from mlxcel.http.anthropic import count_tokens, messages
from mlxcel.http.cache_routes import cache_probe, cache_reset, cache_stats
from mlxcel.http.context import HttpContext, JobsPort, context_of
from mlxcel.http.document import DocumentPlugin
from mlxcel.http.errors import handle_exception, json_reply
from mlxcel.http.health import health
from mlxcel.http.llama_completion import native_completion
from mlxcel.http.metrics import metrics
from mlxcel.http.models import list_models, one_model
from mlxcel.http.native import apply_template, detokenize, render_chat, tokenize
from mlxcel.http.openai_chat import chat_completions
from mlxcel.http.openai_completions import completions
from mlxcel.http.security import guard
from mlxcel.http.settings import HttpSettings
from mlxcel.ports import GenerationPort


@get("/", summary="What this is")
async def index(request: Request[Any, Any, Any]) -> ASGIResponse:
    """A few words for whoever opens the address in a browser."""
    name = context_of(request).settings.server_name
    return json_reply({"server": name, "health": "/health", "openapi": "/schema/openapi.json", "api": "/v1"})


ROUTES = (
    index,
    health,
    list_models,
    one_model,
    chat_completions,
    completions,
    native_completion,
    messages,
    count_tokens,
    tokenize,
    detokenize,
    apply_template,
    render_chat,
    cache_stats,
    cache_reset,
    cache_probe,
    metrics,
    *admin.HANDLERS,
    *admin_entries.HANDLERS,
    *admin_history.HANDLERS,
)


def create_app(service: GenerationPort, settings: HttpSettings, jobs: JobsPort | None = None) -> Litestar:
    """Return the HTTP API over `service`. Starts no thread and opens no socket; give the app to an ASGI server."""
    return Litestar(
        route_handlers=list(ROUTES),
        state=State({"context": HttpContext(service, settings, jobs)}),
        middleware=[guard(settings)],
        exception_handlers={HTTPException: handle_exception, Exception: handle_exception},
        request_max_body_size=settings.max_body_bytes,
        # JSON only: the interactive pages load their scripts from the internet.
        openapi_config=OpenAPIConfig(title=settings.server_name, version="0.1.0", render_plugins=[DocumentPlugin()]),
        logging_config=None,
        debug=False,
    )
