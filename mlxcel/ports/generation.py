"""Generation as HTTP sees it: a request goes in, a stream of items comes out."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from mlxcel.ports.engine import SamplingParams


class CacheScope(msgspec.Struct, frozen=True):
    """Which entries a request may share. The dimensions of the guide's key besides model and tokens."""

    template_sig: str = "raw"
    session_key: str = "__mlxcel_anon__"
    media_digest: bytes = b""  # 32 bytes; empty means the fixed text-only digest
    tenant_salt: str = ""
    lora_id: str = ""


class CacheOptions(msgspec.Struct, frozen=True):
    """Per-request choices. `read=False, store=False` is the guide's cache_prompt: false."""

    read: bool = True
    store: bool = True
    ttl_s: float | None = None


class TextAssembler(Protocol):
    """Turns tokens into text on the engine thread; finds stop strings. Pure Python, one per request."""

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that became certain and whether a stop string completed."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


class GenerateRequest(msgspec.Struct, frozen=True):
    """One generation. `boundaries`: positions (tokens) where prefill is split and a reusable point is kept; `shared`: those
    of them that end what many sessions have in common. `next_turn`: called on the engine thread when idle, after a healthy
    end: returns the tokens with which the next turn will begin whatever its user says, or None (see service/warmup.py).
    `max_tokens` 0: nothing is decoded; the prompt is computed and kept to its very end.
    """

    request_id: str
    tokens: bytes
    params: SamplingParams
    max_tokens: int
    scope: CacheScope
    options: CacheOptions = CacheOptions()
    boundaries: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    next_turn: Callable[[str], bytes | None] | None = None  # of the answer's whole text
    text: Any = None  # TextAssembler | None
    arrived_s: float = 0.0


class Delta(msgspec.Struct, frozen=True):
    """Text and tokens that became certain."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """How far prefill has come; `cached_tokens` of it came from the cache. One at least comes before the first Delta."""

    prefilled_tokens: int
    total_tokens: int
    cached_tokens: int = 0


class Finished(msgspec.Struct, frozen=True):
    """The end of a healthy generation. `cached_tokens`: prompt tokens really skipped, 0 <= cached < prompt."""

    finish_reason: str  # "stop" | "length"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    source: str  # "cold" | "memory" | "disk" | "snapshot"
    stop_string: str = ""
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    created_tokens: int = 0


class Failed(msgspec.Struct, frozen=True):
    """The end of an unhealthy generation: `kind` names a row of the error table."""

    kind: str  # "cancelled" | "engine_fault" | "overloaded" | "out_of_memory" | "shutting_down"
    message: str


StreamItem = Delta | Progress | Finished | Failed


class GenerationPort(Protocol):
    """What HTTP calls. Methods may be called from any thread; `emit` is called from the engine thread."""

    def submit(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> None:
        """Queue a generation. Raises Overloaded when the queue is full."""
        ...

    def cancel(self, request_id: str) -> None: ...

    def ask(self, question: str, **arguments: Any) -> Any:
        """Run an admin question or command on the engine thread and wait for its answer (plain dict).
        Questions: see `mlxcel.service.questions`."""
        ...

    def status(self) -> dict[str, Any]:
        """Return {"phase": "loading"|"ready"|"draining"|"dead", "detail": str, "facts": ModelFacts | None}; never blocks."""
        ...


class Overloaded(Exception):
    """The waiting queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
