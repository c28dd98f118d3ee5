"""The operator's routes. Each posts one question or command to the engine thread."""

from typing import Any

from litestar import Request, get, post
from litestar.response.base import ASGIResponse

from mlxcel.http.context import context_of
from mlxcel.http.errors import json_reply


@get("/admin/state", summary="Fingerprint of the cache state and position of the log")
async def admin_state(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Return the service's own account of its state."""
    return json_reply(await context_of(request).ask("state"))


@post("/admin/sweep", status_code=200, summary="Drop expired entries now")
async def admin_sweep(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Run a TTL sweep."""
    return json_reply(await context_of(request).ask("sweep"))


@post("/admin/checkpoint", status_code=200, summary="Write a checkpoint and open a new log segment")
async def admin_checkpoint(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Write a checkpoint."""
    return json_reply(await context_of(request).ask("checkpoint"))


@post("/admin/flush", status_code=200, summary="Write what waits to the disk tier")
async def admin_flush(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Flush the write-behind queue."""
    return json_reply(await context_of(request).ask("flush"))
