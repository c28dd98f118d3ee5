"""Server-sent events: headers late enough for a real error status, comments while waiting, a cancel when left."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from mlxcel.http.errors import ApiError
from mlxcel.http.generation import ClientGone, Generation, progress_comment
from mlxcel.ports import Delta, Finished, Progress, StreamItem

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Return one event with a name, as Anthropic sends them."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


def data_event(value: Any) -> bytes:
    """Return one event without a name, as OpenAI sends them."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventWriter(Protocol):
    """How one API spells a stream."""

    def progress(self, item: Progress) -> list[bytes]:
        """Return what keeps the connection alive while prefill runs: a comment, unless an API has something better."""
        return [progress_comment(item)]

    def delta(self, item: Delta) -> list[bytes]:
        """Return the events of text that became certain."""
        ...

    def finished(self, item: Finished) -> list[bytes]:
        """Return the closing events."""
        ...

    def failed(self, fault: ApiError) -> list[bytes]:
        """Return the events of a fault after the headers have gone out."""
        ...


class EventStream(ASGIResponse):
    """Streams one generation that has been entered and whose first items are known (none: still waiting)."""

    _should_set_content_length = False

    def __init__(
        self,
        generation: Generation,
        first: Sequence[StreamItem],
        writer: EventWriter,
        ping_interval_s: float,
        headers: dict[str, str],
        on_end: Callable[[Finished | None, str], None],
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            status_code=200,
            headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._generation = generation
        self._first = first
        self._writer = writer
        self._ping_interval_s = ping_interval_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; whatever ends it, the generation is left in order."""
        finished: Finished | None = None
        outcome = "abandoned"
        try:
            await self.start_response(send)
            async for item in self._items():
                if isinstance(item, Finished):
                    finished = item
                elif isinstance(item, ApiError):
                    outcome = "failed"
                for event in self._events(item):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            pass  # the generation is cancelled; there is nobody to tell
        finally:
            self._on_end(finished, outcome)
            await self._generation.__aexit__(None, None, None)

    async def _items(self) -> AsyncIterator[StreamItem | ApiError | None]:
        try:
            for known in self._first:
                yield known
                if isinstance(known, Finished):
                    return
            while True:
                item = await self._generation.next(self._ping_interval_s)
                yield item
                if isinstance(item, Finished):
                    return
        except ApiError as fault:
            yield fault

    def _events(self, item: StreamItem | ApiError | None) -> list[bytes]:
        if item is None:
            return [PING]
        if isinstance(item, Progress):
            return self._writer.progress(item)
        if isinstance(item, Delta):
            return self._writer.delta(item)
        if isinstance(item, Finished):
            return self._writer.finished(item)
        assert isinstance(item, ApiError), "a failed end is raised as ApiError"
        return self._writer.failed(item)
