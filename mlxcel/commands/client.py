"""A small HTTP client of a running daemon, from the standard library: a command needs no more than a few JSON calls."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import click

UNREACHABLE_EXIT, USAGE_EXIT, REFUSED_EXIT = 3, 2, 1
TIMEOUT_S = 600.0


class Asker:
    """Speaks to one daemon. Proxies of the environment are not used: the daemon is on this machine or named by its owner."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **query: Any) -> Any:
        """GET a JSON answer. Raises SystemExit with a sentence when there is none."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._json(f"{path}?{urllib.parse.urlencode(given)}" if given else path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """POST JSON, return JSON. Raises SystemExit."""
        return self._json(path, json.dumps(body or {}).encode())

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of a stream until it ends. Raises SystemExit."""
        with self._open(path, None) as answer:
            try:
                for line in answer:
                    yield line.decode("utf-8", "replace").rstrip("\n")
            except (OSError, http.client.HTTPException):
                raise _stop(f"the daemon at {self._url} has gone", UNREACHABLE_EXIT) from None

    def _json(self, path: str, body: bytes | None) -> Any:
        try:
            with self._open(path, body) as answer:
                return json.loads(answer.read())
        except (ValueError, OSError, http.client.HTTPException):
            raise _stop(f"what answers at {self._url} is no mlxcel, or has gone; see --url", UNREACHABLE_EXIT) from None

    def _open(self, path: str, body: bytes | None) -> Any:
        try:
            request = urllib.request.Request(self._url + path, data=body, headers=self._headers)
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as fault:
            raise _stop(_message(fault), REFUSED_EXIT) from None
        except (OSError, http.client.HTTPException) as fault:  # a URLError is an OSError
            reason = " ".join(str(getattr(fault, "reason", fault)).split())
            raise _stop(
                f"no daemon answers at {self._url} ({reason}); start one or give --url", UNREACHABLE_EXIT
            ) from None
        except ValueError as fault:  # not a URL, or a key that can't stand in a header
            raise _stop(f"--url or --key can't be used: {fault}", USAGE_EXIT) from None


def _message(fault: urllib.error.HTTPError) -> str:
    with fault:
        try:
            return str(json.loads(fault.read())["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return f"HTTP {fault.code}"


def _stop(message: str, code: int) -> SystemExit:
    click.echo(f"mlxcel: {message}", err=True)
    return SystemExit(code)


def show(answer: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json.dumps(answer, indent=2, ensure_ascii=False))


url_option = click.option(
    "--url",
    envvar="MLXCEL_URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    help="The daemon. [env: MLXCEL_URL]",
)
key_option = click.option(
    "--key", envvar="MLXCEL_CLIENT_KEY", default="", help="Admin key, or a tenant's. [env: MLXCEL_CLIENT_KEY]"
)
