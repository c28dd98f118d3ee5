"""The service's front: what any thread may call. Everything is posted to the engine thread's inbox."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mlxcel.ports import GenerateRequest, ModelFacts, Overloaded, StreamItem
from mlxcel.service.job import Job

ASK_TIMEOUT_S = 600.0


class Limits:
    """What may be taken on at once. `live_kv_bytes` 0: no limit."""

    def __init__(self, queue_depth: int, batch_rows: int, chunk_tokens: int, live_kv_bytes: int) -> None:
        self.queue_depth = queue_depth
        self.batch_rows = batch_rows
        self.chunk_tokens = chunk_tokens
        self.live_kv_bytes = live_kv_bytes
        self.timeout_s = self.decode_timeout_s = 0.0  # 0: no limit


class GenerationService:
    """Implements `ports.GenerationPort`. The engine thread reads `inbox` in `EngineLoop` (loop.py)."""

    def __init__(self, limits: Limits, now_s: Callable[[], float]) -> None:
        self.limits = limits
        self.now_s = now_s
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._status: dict[str, Any] = {"phase": "loading", "detail": "", "facts": None}
        self._accepted = 0
        self._lock = threading.Lock()

    def submit(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> None:
        """Queue a generation. Raises Overloaded when too many wait already or the daemon does not serve now."""
        with self._lock:
            if self._status["phase"] != "ready":
                raise Overloaded(f"the daemon is {self._status['phase']}", retry_after_s=5)
            if self._accepted >= self.limits.queue_depth + self.limits.batch_rows:
                raise Overloaded(f"{self._accepted} requests are running or waiting; try again", retry_after_s=2)
            self._accepted += 1
            # Under the lock: whoever was accepted stands in the inbox before the phase changes and the loop may end.
            self.inbox.put(("submit", Job(request, emit, self.now_s())))

    def cancel(self, request_id: str) -> None:
        """Give a request up; its stream ends with "cancelled"."""
        self.inbox.put(("cancel", request_id))

    def ask(self, question: str, **arguments: Any) -> Any:
        """Have the engine thread answer; see `questions.py`. Raises what the answer raised, or RuntimeError when dead."""
        if self._status["phase"] == "dead":
            raise RuntimeError("the engine thread has ended")
        answer: Future[Any] = Future()
        self.inbox.put(("ask", (question, arguments, answer)))
        return answer.result(timeout=ASK_TIMEOUT_S)

    def post(self, kind: str, payload: Any) -> None:
        """Post to the engine thread: "spilled" (outcomes), "restored" (job, a step of its restore), "chore" (a callable)."""
        self.inbox.put((kind, payload))

    def status(self) -> dict[str, Any]:
        """Return phase, detail and the model's facts; never blocks."""
        return dict(self._status)

    def set_phase(self, phase: str, detail: str = "", facts: ModelFacts | None = None) -> None:
        """Say where the daemon stands: loading, ready, draining or dead."""
        with self._lock:
            self._status = {"phase": phase, "detail": detail, "facts": facts or self._status["facts"]}

    def stop(self, within_s: float) -> None:
        """Take nothing new; let what runs finish within `within_s`, then end the loop."""
        if self._status["phase"] != "dead":
            self.set_phase("draining")
        self.inbox.put(("stop", within_s))

    def ended(self) -> None:
        """One accepted request is over."""
        with self._lock:
            self._accepted -= 1
