"""One table from every fault and refusal to its HTTP answer, in the shape of the API that was called."""

import logging
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse, Response

from mlxcel.ports import Overloaded
from mlxcel.service.cache import CacheSuspended

log = logging.getLogger("mlxcel.http")


class ErrorRow(msgspec.Struct, frozen=True):
    """How one kind of fault is answered."""

    status: int
    type: str
    code: str | None = None
    retry_after_s: int | None = None


ERRORS: dict[str, ErrorRow] = {
    # what the client sent
    "invalid_request": ErrorRow(400, "invalid_request_error"),
    "unsupported": ErrorRow(400, "invalid_request_error", "unsupported_parameter"),
    "context_length_exceeded": ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    "unauthorized": ErrorRow(401, "invalid_request_error", "invalid_api_key"),
    "forbidden": ErrorRow(403, "invalid_request_error", "forbidden"),
    "not_found": ErrorRow(404, "invalid_request_error", "not_found"),
    "method_not_allowed": ErrorRow(405, "invalid_request_error", "method_not_allowed"),
    "conflict": ErrorRow(409, "invalid_request_error", "conflict"),
    "too_large": ErrorRow(413, "invalid_request_error"),
    "unsupported_media_type": ErrorRow(415, "invalid_request_error"),
    # the state of the server
    "overloaded": ErrorRow(429, "rate_limit_error", "rate_limit_exceeded", 1),
    "loading": ErrorRow(503, "unavailable_error", "model_loading", 2),
    "shutting_down": ErrorRow(503, "unavailable_error", "shutting_down", 5),
    "dead": ErrorRow(503, "unavailable_error", "engine_dead", 10),
    "cache_suspended": ErrorRow(503, "unavailable_error", "cache_suspended"),
    "not_enabled": ErrorRow(501, "not_supported_error", "not_enabled"),
    # how a generation ended
    "cancelled": ErrorRow(499, "invalid_request_error", "cancelled"),
    "out_of_memory": ErrorRow(503, "server_error", "out_of_memory", 5),
    "timeout": ErrorRow(504, "server_error", "timeout", 5),
    "engine_fault": ErrorRow(500, "server_error", "engine_fault"),
    "internal": ErrorRow(500, "server_error", "internal_error"),
}

_KIND_OF_STATUS = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


# Anthropic's names, by status (its API reference, "Errors").
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_PATHS = ("/messages", "/messages/count_tokens")


class ApiError(Exception):
    """A fault or refusal that a client gets to see. `kind` is a row of ERRORS; `param` names the field."""

    def __init__(self, kind: str, message: str, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def row(self) -> ErrorRow:
        """The row of the table; a kind that the table lacks is answered as an internal fault."""
        return ERRORS.get(self.kind, ERRORS["internal"])

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's shape."""
        row = self.row
        return {"error": {"message": self.message, "type": row.type, "param": self.param, "code": row.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """Return the error in Anthropic's shape; the message names the field, since the shape has no place for it."""
        message = f"{self.param}: {self.message}" if self.param else self.message
        kind = _ANTHROPIC_TYPES.get(self.row.status, "invalid_request_error" if self.row.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def headers(self) -> dict[str, str]:
        """Return Retry-After where the table or the fault names a delay."""
        delay = self.retry_after_s if self.retry_after_s is not None else self.row.retry_after_s
        return {} if delay is None else {"Retry-After": str(max(1, round(delay)))}


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ASGIResponse:
    """Return a finished JSON response; handlers that stream and those that don't share this type."""
    return ASGIResponse(
        body=msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers or {}
    )


def as_api_error(fault: Exception) -> ApiError:
    """Translate any exception; only what the table knows keeps its message."""
    if isinstance(fault, ApiError):
        return fault
    if isinstance(fault, Overloaded):
        return ApiError("overloaded", str(fault), retry_after_s=fault.retry_after_s)
    if isinstance(fault, CacheSuspended):
        return ApiError("cache_suspended", f"The cache takes no decisions now: {fault}")
    if isinstance(fault, HTTPException) and fault.status_code < 500:
        kind = _KIND_OF_STATUS.get(fault.status_code, "invalid_request")
        return ApiError(kind, fault.detail)
    return ApiError("internal", "The server had an error while processing your request.")


def handle_exception(request: Request[Any, Any, Any], fault: Exception) -> Response[Any]:
    """Litestar's exception handler for everything: no traceback leaves, and none is lost."""
    error = as_api_error(fault)
    if error.row.status >= 500 and error.kind in ("internal", "engine_fault"):
        log.error("%s %s failed", request.method, request.url.path, exc_info=fault)
    anthropic = request.url.path.rstrip("/").endswith(_ANTHROPIC_PATHS)
    return Response(
        content=msgspec.json.encode(error.anthropic_body() if anthropic else error.body()),
        status_code=error.row.status,
        media_type="application/json",
        headers=error.headers(),
    )
