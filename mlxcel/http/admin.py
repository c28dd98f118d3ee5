"""The operator's routes about the daemon itself. Each posts one question or command to the engine thread."""

import asyncio
import contextlib
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, caller_of, context_of
from mlxcel.http.errors import ApiError, as_api_error, json_reply
from mlxcel.http.query import number
from mlxcel.http.sse import PING, data_event
from mlxcel.service.operator import Limits

EVENTS_LOOK_S = 0.5


@get("/admin/state", summary="Fingerprint of the cache state, position of the log, settings in force, counts")
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


@post("/admin/check", status_code=200, summary="Check all invariants of the cache's state")
async def admin_check(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Return what is broken; an empty list is health."""
    return json_reply(await context_of(request).ask("check"))


@post("/admin/reload", status_code=200, summary="Change limits while the daemon runs")
async def admin_reload(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Takes capacities, numbers and times to live; answers the policy now in force. It lasts until the next start."""
    context = context_of(request)
    limits = await read_json(request, Limits, context.settings.max_json_depth)
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        most = 10**10 if name.endswith("_s") else 2**53  # seconds become microseconds of 64 bits
        if value is not None and not 0 <= value <= most:
            raise ApiError("invalid_request", f"{name} must be between 0 and {most}.", param=name)
    return json_reply(await context.ask("reload", limits=limits, caller=caller_of(request)))


@get("/admin/events", summary="Records of cache decisions after a position (since, limit)")
async def admin_events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The newest few thousand are held in memory; older ones are in the log. Tokens are shown as their number."""
    since, limit = number(request, "since", int) or 0, number(request, "limit", int)
    return json_reply(await context_of(request).ask("events", since=since, limit=500 if limit is None else limit))


class _EventFeed(ASGIResponse):
    """Sends records as they come until the client leaves."""

    _should_set_content_length = False

    def __init__(self, context: HttpContext, since: int) -> None:
        super().__init__(media_type="text/event-stream", status_code=200, headers={"cache-control": "no-cache"})
        self._context = context
        self._since = since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look for new records twice a second."""
        await self.start_response(send)
        gone = asyncio.create_task(_until_gone(receive))
        quiet_s = 0.0
        try:
            while not gone.done():
                try:
                    found = await self._context.ask("events", since=self._since)
                except Exception as fault:  # the daemon is stopping: say so and end
                    await _part(send, data_event(as_api_error(fault).body()))
                    break
                self._since = found["next"]
                for row in found["events"]:
                    await _part(send, b"id: %d\n" % row["seq"] + data_event(row))
                quiet_s = 0.0 if found["events"] else quiet_s + EVENTS_LOOK_S
                if quiet_s >= self._context.settings.ping_interval_s:
                    await _part(send, PING)
                    quiet_s = 0.0
                await asyncio.wait([gone], timeout=EVENTS_LOOK_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone


async def _part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@get("/admin/events/stream", summary="The same as server-sent events, without an end")
async def admin_event_stream(request: Request[Any, Any, Any]) -> ASGIResponse:
    """`Last-Event-ID` or `since` says where to go on."""
    since = number(request, "since", int)
    last = request.headers.get("last-event-id", "")
    context = context_of(request)
    context.facts()
    return _EventFeed(context, since if since is not None else int(last) if last.isdigit() and len(last) < 16 else 0)


class JobBody(msgspec.Struct):
    """POST /admin/jobs/run."""

    name: str


@get("/admin/jobs", summary="Scheduled work with its last and next run")
async def admin_jobs(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Return name, period, last run, its result and the next run."""
    return json_reply({"jobs": context_of(request).jobs.listing()})


@post("/admin/jobs/run", status_code=200, summary="Run a scheduled job now")
async def admin_run_job(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Waits for its end. A job that is running already is a 409."""
    context = context_of(request)
    body = await read_json(request, JobBody, context.settings.max_json_depth)
    return await _run_job(context, body.name)


async def _run_job(context: HttpContext, name: str) -> ASGIResponse:
    if name not in [job["name"] for job in context.jobs.listing()]:
        raise ApiError("not_found", f"There is no job {name[:40]!r}.", param="name")
    if not await asyncio.to_thread(context.jobs.run, name):
        raise ApiError("conflict", "That job is running already.", param="name")
    return json_reply(next(job for job in context.jobs.listing() if job["name"] == name))


@post("/admin/compact", status_code=200, summary="Rewrite the disk tier's file without its free pages")
async def admin_compact(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Runs the job of that name and waits for its end."""
    return await _run_job(context_of(request), "compact")


HANDLERS = (
    admin_compact,
    admin_state,
    admin_sweep,
    admin_checkpoint,
    admin_flush,
    admin_check,
    admin_reload,
    admin_events,
    admin_event_stream,
    admin_jobs,
    admin_run_job,
)
