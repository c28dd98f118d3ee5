"""GET /health: is there a model that answers? Busy is healthy."""

from typing import Any

from litestar import Request, get
from litestar.response.base import ASGIResponse

from mlxcel.http.context import context_of
from mlxcel.http.errors import json_reply

_MESSAGES = {"loading": "Loading model", "draining": "Shutting down", "dead": "Engine is dead"}


@get(["/health", "/v1/health"], summary="200 when the model is loaded, 503 before and after")
async def health(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The shape is llama-server's, since supervisors and clients look for it."""
    status = context_of(request).service.status()
    phase = str(status["phase"])
    if phase == "ready":
        return json_reply({"status": "ok"})
    message = _MESSAGES.get(phase, _MESSAGES["dead"])
    error = {"code": 503, "message": message, "type": "unavailable_error"}
    return json_reply({"error": error}, 503, {"Retry-After": "2"})
