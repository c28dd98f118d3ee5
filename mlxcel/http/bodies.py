"""Read and decode a JSON body: size, media type, depth and types are checked before anything uses it."""

import logging
import re
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from mlxcel.http.errors import ApiError

log = logging.getLogger("mlxcel.http")

T = TypeVar("T")
_PATH = re.compile(r" - at `\$\.?(.*?)`$")


async def read_json(request: Request[Any, Any, Any], into: type[T], max_depth: int) -> T:
    """Return the decoded body. Raises ApiError naming the field for anything that isn't valid.

    The body's size limit is Litestar's (request_max_body_size). msgspec refuses NaN, lone surrogates, bad UTF-8,
    trailing data and loose types.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise ApiError("unsupported_media_type", f"Send JSON with Content-Type: application/json, not {kind[:80]!r}.")
    body = await read_whole(request)
    if not body:
        raise ApiError("invalid_request", "The request body is empty; send JSON.")
    return decode_json(body, into, max_depth)


async def read_whole(request: Request[Any, Any, Any]) -> bytes:
    """Return the body, empty where none was sent. Raises ApiError."""
    try:
        body = await request.body()
    except RequestEntityTooLarge as fault:
        limit_bytes = request.app.state.context.settings.max_body_bytes
        raise ApiError("too_large", f"The request body is larger than the limit of {limit_bytes} bytes.") from fault
    except InternalServerException as fault:
        if not request.is_connected:  # Litestar clears this once a body was read: the fault is ours
            raise
        # Litestar's word for a client that closed its connection before the body was whole: no fault of the server.
        log.debug("%s %s: the client left before its body was whole", request.method, request.url.path)
        raise ApiError("cancelled", "The client closed the connection.") from fault
    return body


def decode_json(body: bytes, into: type[T], max_depth: int) -> T:
    """Decode `body`. Raises ApiError."""
    try:
        if nesting(body, max_depth) > max_depth:
            raise ApiError("invalid_request", f"The JSON body is nested deeper than {max_depth} levels.")
        return msgspec.json.decode(body, type=into)
    except msgspec.ValidationError as fault:
        raise _invalid(str(fault)) from fault
    except msgspec.DecodeError as fault:
        raise ApiError("invalid_request", f"We could not parse the JSON body of your request: {fault}") from fault
    except RecursionError as fault:
        raise ApiError("invalid_request", "The JSON body is nested too deep.") from fault


def _invalid(text: str) -> ApiError:
    match = _PATH.search(text)
    param = match.group(1) if match else None
    return ApiError("invalid_request", f"Invalid type or value: {_PATH.sub('', text)}.", param=param or None)


_NOT_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)


def nesting(body: bytes, enough: int) -> int:
    """Return how deep brackets nest outside of strings; stops counting above `enough`."""
    if body.count(b"[") + body.count(b"{") <= enough:
        return 0  # can't be deeper than the number of opening brackets
    depth = deepest = 0
    for char in _NOT_STRUCTURE.sub(b"", body):
        if char in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > enough:
                break
        elif char in b"]}":
            depth -= 1
    return deepest
