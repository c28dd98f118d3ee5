"""Query parameters by hand, so that a bad one is a 400 in the shape of all errors."""

import math
from typing import Any, TypeVar

from litestar import Request

from mlxcel.http.errors import ApiError

N = TypeVar("N", int, float)


def text(request: Request[Any, Any, Any], name: str) -> str | None:
    """Return a parameter as text, None when it is absent."""
    value = request.query_params.get(name)
    return None if value is None else str(value)


def number(request: Request[Any, Any, Any], name: str, kind: type[N]) -> N | None:
    """Return a parameter as a number that is not negative. Raises ApiError."""
    given = text(request, name)
    if given is None:
        return None
    try:
        value = kind(given)
    except ValueError:
        value = kind(-1)
    if not 0 <= value < 2**53 or not math.isfinite(value):
        raise ApiError("invalid_request", f"{name} takes a number that is not negative.", param=name)
    return value


def flag(request: Request[Any, Any, Any], name: str) -> bool:
    """Return a parameter as yes or no. Raises ApiError."""
    given = text(request, name)
    if given in (None, "", "0", "false"):
        return False
    if given in ("1", "true"):
        return True
    raise ApiError("invalid_request", f"{name} takes 0 or 1.", param=name)
