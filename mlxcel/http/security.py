"""Who may call: Host and Origin (DNS rebinding, other sites' pages), API keys, the admin key.

CORS is off: no answer carries an Access-Control header, and a request that names a foreign Origin is refused, so that
a web page can't even set off work that it could not read.
"""

import hmac
import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from litestar.types import ASGIApp, Receive, Scope, Send

from mlxcel.http.errors import ApiError
from mlxcel.http.settings import ApiKey, HttpSettings

PUBLIC_PATHS = frozenset({"/", "/health", "/v1/health"})
NO_KEY = "No API key was sent; send it as Authorization: Bearer KEY."
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether an address or name is this machine's loopback."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_name(header: str) -> str:
    """Return the name of a Host header without its port, lower-cased; "" when it can't be read."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def same_secret(given: str, known: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode("utf-8", "surrogateescape"))


class Guard:
    """ASGI middleware. Raises ApiError, which the app's exception handler answers."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings
        self._names = LOOPBACK_NAMES | {name.lower() for name in settings.allowed_hosts}
        self._check_host = is_loopback(settings.host) or bool(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then pass it on."""
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._host(headers)
            path = scope["path"].rstrip("/") or "/"
            state: dict[str, Any] = scope.setdefault("state", {})  # type: ignore[typeddict-item]
            if path == "/admin" or path.startswith("/admin/") or (path == "/metrics" and self._settings.api_keys):
                # Where there are tenants the totals of all are the operator's: they tell what others do.
                state["caller"] = self._admin(scope, headers)
            elif path not in PUBLIC_PATHS:
                key = self._key(headers)
                state["tenant"], state["caller"] = (key.salt or key.tenant, key.tenant)
        await self._app(scope, receive, send)

    def _host(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if self._check_host and host_name(host) not in self._names:
            raise ApiError("forbidden", "This Host header is not allowed; see --allowed-host.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise ApiError("forbidden", "Requests of web pages from other origins are not allowed.")

    def _key(self, headers: dict[str, str]) -> ApiKey:
        keys = self._settings.api_keys
        if not keys:
            return ApiKey("")
        given = given_key(headers)
        if not given:
            raise ApiError("unauthorized", NO_KEY)
        matches = [entry for entry in keys if same_secret(given, entry.key)]  # all are compared: no early end to time
        if not matches:
            raise ApiError("unauthorized", "Incorrect API key provided.")
        return matches[0]

    def _admin(self, scope: Scope, headers: dict[str, str]) -> str:
        """Return who calls, as events name it."""
        if self._settings.admin_key:
            if not same_secret(given_key(headers), self._settings.admin_key):
                raise ApiError("unauthorized", "The admin routes need the admin key.")
            return "admin key"
        client = scope.get("client")
        if client is None or not is_loopback(client[0]):
            raise ApiError("forbidden", "Without an admin key the admin routes answer callers on this machine only.")
        return "this machine"


def given_key(headers: dict[str, str]) -> str:
    """Return the key of `Authorization: Bearer` or `x-api-key`, "" without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def guard(settings: HttpSettings) -> Callable[..., ASGIApp]:
    """Return the middleware for an app."""

    def build(app: ASGIApp) -> ASGIApp:
        return Guard(app, settings)

    return build
