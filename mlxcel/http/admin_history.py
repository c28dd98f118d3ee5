"""What the log has to say, over HTTP: the same tools as on the command line, run beside the daemon so that they slow nobody."""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, context_of
from mlxcel.http.errors import ApiError, json_reply

TIMEOUT_S = 120.0
_one_at_a_time = asyncio.Semaphore(1)  # each reads the whole log: two would only take turns


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to decide the recorded requests again under. None leaves one as it was recorded."""

    capacity_bytes: int | None = None
    disk_capacity_bytes: int | None = None
    ttl_s: int | None = None
    max_entries: int | None = None
    min_prefix_tokens: int | None = None
    ranking: str | None = None


_FLAGS = {
    "capacity_bytes": "--capacity",
    "disk_capacity_bytes": "--disk-capacity",
    "ttl_s": "--ttl",
    "max_entries": "--max-entries",
    "min_prefix_tokens": "--min-prefix",
    "ranking": "--ranking",
}


@get("/admin/explain/{request_id:str}", summary="Why this request hit, missed or was refused")
async def admin_explain(request: Request[Any, Any, Any], request_id: FromPath[str]) -> ASGIResponse:
    """Candidates, where each diverged, which rule decided; from the log. 404 for a request that it does not hold."""
    return json_reply(await _run(context_of(request), ("ops.replay", "explain"), (), request_id))


@get("/admin/diagnosis", summary="What keeps the hit rate low, with evidence and advice")
async def admin_diagnosis(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Findings ranked by the prompt tokens that would have been reused without them."""
    return json_reply(await _run(context_of(request), ("ops.diagnose",), ()))


@post("/admin/what-if", status_code=200, summary="Decide the recorded requests again under other settings")
async def admin_what_if(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Takes capacities, numbers and times to live; answers hit rate, tokens saved and evictions beside the recorded ones."""
    context = context_of(request)
    wanted = await read_json(request, WhatIf, context.settings.max_json_depth)
    flags: list[str] = []
    for name, flag in _FLAGS.items():
        value = getattr(wanted, name)
        if isinstance(value, int) and not 0 <= value <= 2**53:
            raise ApiError("invalid_request", f"{name} must be between 0 and {2**53}.", param=name)
        if value is not None:
            flags += [flag, str(value)]
    return json_reply(await _run(context, ("ops.replay", "what-if"), flags))


async def _run(context: HttpContext, tool: Sequence[str], flags: Sequence[str], *more: str) -> Any:
    """Run one of the tools on our own data directory; returns what it prints as JSON. Raises ApiError."""
    if not context.settings.data_dir:
        raise ApiError("unsupported", "This server has no data directory to read a log from.")
    given = [*tool, *flags, "--json", "--", context.settings.data_dir, *more]
    async with _one_at_a_time:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *given,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TIMEOUT_S):
                said, complaint = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["the tool said nothing"]
        raise ApiError("not_found" if process.returncode == 2 else "internal", last[0])
    try:
        return json.loads("\n".join(lines))
    except ValueError:
        return [json.loads(line) for line in lines]


HANDLERS = (admin_explain, admin_diagnosis, admin_what_if)
