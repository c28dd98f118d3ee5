"""One running generation, as a route sees it: items in order, and a certain cancel when the client leaves."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType

from litestar.types import Receive

from mlxcel.http.errors import ApiError
from mlxcel.ports import Delta, Failed, Finished, GenerateRequest, GenerationPort, Progress, StreamItem


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer any more."""


class Generation:
    """Submit on entry; on exit cancel what has not ended. Use as an async context manager on the event loop."""

    def __init__(self, service: GenerationPort, request: GenerateRequest, receive: Receive) -> None:
        self._service = service
        self.request = request
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._items: deque[StreamItem] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Generation":
        """Raises ports.Overloaded when the queue is full: nothing runs then."""
        self._service.submit(self.request, self._emit)
        self._watch = asyncio.create_task(self._watch_client())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First the cancel, which never waits: leaving this method may itself be cancelled.
        self._cancel()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _emit(self, item: StreamItem) -> None:
        """Called on the engine thread. One wake-up may serve many items."""
        self._items.append(item)
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The server has stopped listening; the engine must not fail for it.

    async def _watch_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                self._cancel()
                self._wake.set()
                return

    def _cancel(self) -> None:
        """Cancel what has not ended, once."""
        if not self._ended:
            self._ended = True
            self._service.cancel(self.request.request_id)

    async def next(self, timeout_s: float) -> StreamItem | None:
        """Return the next item, None after `timeout_s` without one. Raises ClientGone; ApiError for a failed end."""
        while not self._gone and not self._items:
            # An item that arrives now sets the event in a later turn of the loop, so this clear loses nothing.
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return None
        if self._gone:
            raise ClientGone
        item = self._items.popleft()
        if isinstance(item, Finished | Failed):
            self._ended = True
        if isinstance(item, Failed):
            raise ApiError(item.kind, item.message)
        return item

    async def run(self, on_delta: Callable[[Delta], None]) -> Finished:
        """Feed every delta to `on_delta`; return the healthy end. Raises ClientGone, ApiError."""
        while True:
            item = await self.next(60.0)
            if isinstance(item, Delta):
                on_delta(item)
            elif isinstance(item, Finished):
                return item


def progress_comment(item: Progress) -> bytes:
    """Return an SSE comment that tells how far prefill is; clients skip it, proxies see a live connection."""
    return f": prefill {item.prefilled_tokens}/{item.total_tokens}\n\n".encode()
