"""What handlers share: the service, the settings, the chat side of the loaded model, and request ids."""

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any, Protocol

import msgspec
from litestar import Request

from mlxcel.chat.runtime import ChatRuntime
from mlxcel.chat.templates import TemplateRefused
from mlxcel.chat.tokenizer import TokenizerMissing
from mlxcel.http.counters import HttpCounters
from mlxcel.http.errors import ApiError
from mlxcel.http.settings import HttpSettings
from mlxcel.ports import GenerationPort, ModelFacts, SamplingParams

_SAFE_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
FORCED_TOKENS_HEADER = "x-mlxcel-test-forced-tokens"
_PHASES = {
    "loading": ("loading", "The model is loading."),
    "draining": ("shutting_down", "The server is shutting down."),
    "dead": ("dead", "The engine has stopped; the server needs a restart."),
}


class JobsPort(Protocol):
    """The daemon's standing work."""

    def listing(self) -> list[dict[str, Any]]:
        """Return what there is, with last and next runs."""
        ...

    def run(self, name: str) -> bool:
        """Run one now and wait; False when it is running already."""
        ...


class NoJobs:
    """A server without standing work."""

    def listing(self) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def run(self, name: str) -> bool:
        """Raises KeyError: there is no job of any name."""
        raise KeyError(name)


class HttpContext:
    """One per app. `runtime` is built off the event loop when the first request finds the model ready."""

    def __init__(self, service: GenerationPort, settings: HttpSettings, jobs: JobsPort | None = None) -> None:
        self.service = service
        self.jobs: JobsPort = jobs or NoJobs()
        self.settings = settings
        self.counters = HttpCounters()
        self._runtime: tuple[str, ChatRuntime] | None = None
        self._building = asyncio.Lock()
        self._in_flight: set[str] = set()

    def facts(self) -> ModelFacts:
        """Return the loaded model's facts. Raises ApiError (503) in every phase but "ready"."""
        status = self.service.status()
        phase = str(status["phase"])
        if phase != "ready":
            kind, message = _PHASES.get(phase, _PHASES["dead"])
            raise ApiError(kind, message)
        facts = status["facts"]
        assert isinstance(facts, ModelFacts), "a ready service names its model"
        return facts

    async def ready(self) -> tuple[ModelFacts, ChatRuntime]:
        """Return facts and chat side of the loaded model. Raises ApiError."""
        facts = self.facts()
        if self._runtime is None or self._runtime[0] != facts.path:
            async with self._building:
                if self._runtime is None or self._runtime[0] != facts.path:
                    self._runtime = (facts.path, await asyncio.to_thread(self._build, facts))
        return facts, self._runtime[1]

    def _build(self, facts: ModelFacts) -> ChatRuntime:
        try:
            return ChatRuntime(Path(facts.path), self.settings.chat_template, self.settings.chat_template_kwargs)
        except (TokenizerMissing, TemplateRefused) as fault:
            raise ApiError("internal", f"The model's tokenizer or chat template can't be used: {fault}") from fault

    async def ask(self, question: str, **arguments: Any) -> Any:
        """Ask the engine thread and wait off the event loop. Raises ApiError when no engine answers."""
        self.facts()
        return await asyncio.to_thread(self.service.ask, question, **arguments)

    def test_tokens(self, request: Request[Any, Any, Any], params: SamplingParams) -> SamplingParams:
        """Return params that force the tokens of a test's header; without the test switch the header means nothing."""
        if not self.settings.test_forced_tokens:
            return params
        forced = tuple(int(token) for token in request.headers.get(FORCED_TOKENS_HEADER, "").split(",") if token)
        return msgspec.structs.replace(params, forced_tokens=forced) if forced else params

    def claim_id(self, request: Request[Any, Any, Any], prefix: str) -> str:
        """Return the request's own x-request-id if it is safe and not in flight, else a new id with `prefix`."""
        asked = request.headers.get("x-request-id", "")
        chosen = asked if _SAFE_ID.fullmatch(asked) and asked not in self._in_flight else f"{prefix}{uuid.uuid4().hex}"
        self._in_flight.add(chosen)
        return chosen

    def release_id(self, request_id: str) -> None:
        """Give an id back when its generation has ended."""
        self._in_flight.discard(request_id)


def context_of(request: Request[Any, Any, Any]) -> HttpContext:
    """Return the app's context."""
    context: HttpContext = request.app.state.context
    return context


def tenant_of(request: Request[Any, Any, Any]) -> str:
    """Return the tenant that the request's key belongs to ("" without keys)."""
    return str(request.scope.get("state", {}).get("tenant", ""))


def caller_of(request: Request[Any, Any, Any]) -> str:
    """Return who calls, as events name it: a tenant, the admin key, this machine; never a key."""
    return str(request.scope.get("state", {}).get("caller", ""))
