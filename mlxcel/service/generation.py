"""The engine thread's loop: admits requests, alternates prefill chunks with decode steps, answers questions.

Every step is bounded. Other threads only post to the inbox: HTTP, the scheduler, the disk writer, the restorer.
"""

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mlxcel.ports import Engine, GenerateRequest, ModelFacts, Overloaded, RowFailed, StepToken, StreamItem
from mlxcel.service.job import Job
from mlxcel.service.questions import Questions
from mlxcel.service.reuse import Reuse

log = logging.getLogger("mlxcel.engine")


class Limits:
    """What the loop may take on at once."""

    def __init__(self, queue_depth: int, batch_rows: int, chunk_tokens: int, live_kv_bytes: int) -> None:
        self.queue_depth = queue_depth
        self.batch_rows = batch_rows
        self.chunk_tokens = chunk_tokens
        self.live_kv_bytes = live_kv_bytes  # 0: no limit


class GenerationService:
    """Implements `ports.GenerationPort`. `run` is the engine thread's body; everything else may be called from any thread."""

    def __init__(self, limits: Limits, now_s: Callable[[], float]) -> None:
        self.limits = limits
        self._now_s = now_s
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._status: dict[str, Any] = {"phase": "loading", "detail": "", "facts": None}
        self._accepted = 0
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()  # by request id, in order of arrival
        self._stop_at_s: float | None = None
        self.engine: Engine | None = None
        self.reuse: Reuse | None = None
        self.questions: Questions | None = None

    # ------------------------------------------------------------------ from any thread

    def submit(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> None:
        """Queue a generation. Raises Overloaded when too many wait already or the daemon is going down."""
        with self._lock:
            if self._status["phase"] != "ready":
                raise Overloaded(f"the daemon is {self._status['phase']}", retry_after_s=5)
            if self._accepted >= self.limits.queue_depth + self.limits.batch_rows:
                raise Overloaded(f"{self._accepted} requests are running or waiting; try again", retry_after_s=2)
            self._accepted += 1
        self._inbox.put(("submit", Job(request, emit, self._now_s())))

    def cancel(self, request_id: str) -> None:
        """Give a request up; its stream ends with "cancelled"."""
        self._inbox.put(("cancel", request_id))

    def ask(self, question: str, **arguments: Any) -> Any:
        """Have the engine thread answer; see `questions.py`. Raises what the answer raised, or RuntimeError when dead."""
        if self._status["phase"] == "dead":
            raise RuntimeError("the engine thread has ended")
        answer: Future[Any] = Future()
        self._inbox.put(("ask", (question, arguments, answer)))
        return answer.result(timeout=600)

    def post(self, kind: str, payload: Any) -> None:
        """Post to the engine thread: "spilled" (outcomes), "restored" (job, outcome), "chore" (a callable)."""
        self._inbox.put((kind, payload))

    def status(self) -> dict[str, Any]:
        """Return phase, detail and the model's facts; never blocks."""
        return dict(self._status)

    def set_phase(self, phase: str, detail: str = "", facts: ModelFacts | None = None) -> None:
        """Say where the daemon stands."""
        self._status = {"phase": phase, "detail": detail, "facts": facts or self._status["facts"]}

    def stop(self, within_s: float) -> None:
        """Take nothing new; let what runs finish within `within_s`, then end the loop."""
        self.set_phase("draining")
        self._inbox.put(("stop", within_s))

    # ------------------------------------------------------------------ the engine thread

    def attach(self, engine: Engine, reuse: Reuse, questions: Questions) -> None:
        """Hand over the loaded parts; the loop may start."""
        self.engine, self.reuse, self.questions = engine, reuse, questions
        self.set_phase("ready", facts=engine.facts)

    def run(self) -> None:
        """Loop until stopped. An exception that gets here is a broken invariant: waiting requests are told, then it is raised."""
        try:
            while self._step():
                pass
        except BaseException as fault:
            self.set_phase("dead", f"{type(fault).__name__}: {fault}")
            self._abandon_all("engine_fault", "the engine stopped after an internal fault")
            raise

    def _step(self) -> bool:
        assert self.engine is not None and self.reuse is not None
        self._drain_inbox(block=not self._busy())
        if self._stop_at_s is not None and (not self._jobs or self._now_s() >= self._stop_at_s):
            self._abandon_all("shutting_down", "the daemon is stopping")
            return False
        self._admit()
        self._prefill_one()
        self._decode()
        return True

    def _busy(self) -> bool:
        return any(job.phase in ("prefilling", "decoding", "waiting") for job in self._jobs.values())

    def _drain_inbox(self, block: bool) -> None:
        timeout = 0.5
        while True:
            try:
                kind, payload = self._inbox.get(block=block, timeout=timeout)
            except queue.Empty:
                return
            block, timeout = False, 0.0
            self._handle(kind, payload)

    def _handle(self, kind: str, payload: Any) -> None:
        reuse, questions = self.reuse, self.questions
        assert reuse is not None and questions is not None
        match kind:
            case "submit":
                self._jobs[payload.id] = payload
            case "cancel":
                self._cancel(payload)
            case "ask":
                questions.answer(*payload)
            case "spilled":
                questions.chore(lambda: reuse.cache.record_spills(payload))
            case "restored":
                job, outcome = payload
                self._guard(job, lambda: reuse.arrived(job, outcome))
            case "chore":
                questions.chore(payload)
            case "stop":
                self._stop_at_s = self._now_s() + payload

    # ------------------------------------------------------------------ admission

    def _admit(self) -> None:
        """Look up the next waiting request when no other prefills: what it finds then includes all that came before."""
        reuse = self.reuse
        assert reuse is not None
        if any(job.phase == "prefilling" for job in self._jobs.values()):
            return
        for job in list(self._jobs.values()):
            if job.phase == "waiting" and self._fits(job):
                job.prefill_started_s = self._now_s()
                self._guard(job, lambda job=job: reuse.begin(job, self._restored))  # type: ignore[misc]
                return

    def _restored(self, job: Job, outcome: Any) -> None:
        self._inbox.put(("restored", (job, outcome)))

    def _fits(self, job: Job) -> bool:
        """A batch is rectangular: charge rows x the longest row. One request alone always fits."""
        assert self.engine is not None
        running = [j for j in self._jobs.values() if j.phase in ("restoring", "prefilling", "decoding")]
        if not running:
            return True
        if len(running) >= self.limits.batch_rows:
            return False
        longest = max(j.total + j.request.max_tokens for j in [*running, job])
        need = (len(running) + 1) * longest * self.engine.facts.kv_bytes_per_token
        return not self.limits.live_kv_bytes or need <= self.limits.live_kv_bytes

    # ------------------------------------------------------------------ work

    def _prefill_one(self) -> None:
        job = next((j for j in self._jobs.values() if j.phase == "prefilling"), None)
        if job is not None:
            self._guard(job, lambda: self._prefill_chunk(job))

    def _prefill_chunk(self, job: Job) -> None:
        assert self.engine is not None and self.reuse is not None
        stop = job.next_stop(self.limits.chunk_tokens)
        if stop > job.position:
            started = self._now_s()
            self.engine.prefill(job.cache, job.chunk(stop))
            self.reuse.rates.saw_prefill(stop - job.position, self._now_s() - started)
            job.position = stop
            self.reuse.prefilled(job)
            job.progress()
        if job.position == job.total - 1:
            last = int.from_bytes(job.request.tokens[-4:], "little")
            before = job.prompt_before_last()
            job.row = self.engine.start_row(job.cache, last, before, job.request.params, job.request.max_tokens)
            job.cache, job.phase = None, "decoding"

    def _decode(self) -> None:
        assert self.engine is not None
        if not self.engine.rows():
            return
        by_row = {job.row: job for job in self._jobs.values() if job.phase == "decoding"}
        for step in self.engine.decode_step():
            job = by_row.get(step.row)
            if job is None or job.phase != "decoding":
                continue
            if isinstance(step, RowFailed):
                job.row = -1
                self._fail(job, "engine_fault", f"decoding failed: {step.error}")
            else:
                self._guard(job, lambda job=job, step=step: self._token(job, step))  # type: ignore[misc]

    def _token(self, job: Job, step: StepToken) -> None:
        stopped = job.take_token(step, self._now_s())
        if stopped or step.finish:
            self._finish(job, "stop" if stopped else str(step.finish))

    def _finish(self, job: Job, reason: str) -> None:
        assert self.engine is not None and self.reuse is not None
        job.finish(reason, self._now_s())
        self._forget(job)
        cache, covered = self.engine.finish_row(job.row)
        self.reuse.donate(job, cache, covered)

    # ------------------------------------------------------------------ unhappy ends

    def _guard(self, job: Job, work: Callable[[], None]) -> None:
        """Run one step of one request; a fault ends that request, not the daemon."""
        try:
            work()
        except AssertionError:
            raise
        except Exception as fault:
            log.exception("request %s failed", job.id)
            kind = "out_of_memory" if isinstance(fault, MemoryError) else "engine_fault"
            self._fail(job, kind, f"{type(fault).__name__}: {fault}")

    def _cancel(self, request_id: str) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._fail(job, "cancelled", "the client left", outcome="cancelled")

    def _fail(self, job: Job, kind: str, message: str, outcome: str = "failed") -> None:
        assert self.engine is not None and self.reuse is not None
        if job.phase == "decoding" and job.row >= 0:
            self.engine.drop_row(job.row)
        job.fail(kind, message)
        job.cache = None
        self._forget(job)
        self.reuse.end(job, outcome, message[:200])

    def _forget(self, job: Job) -> None:
        if self._jobs.pop(job.id, None) is not None:
            with self._lock:
                self._accepted -= 1

    def _abandon_all(self, kind: str, message: str) -> None:
        for job in list(self._jobs.values()):
            if self._status["phase"] == "dead":
                job.fail(kind, message)
                self._forget(job)
            else:
                self._fail(job, kind, message, outcome="cancelled")
        self._refuse_inbox(kind, message)

    def _refuse_inbox(self, kind: str, message: str) -> None:
        while True:
            try:
                what, payload = self._inbox.get(block=False)
            except queue.Empty:
                return
            if what == "submit":
                payload.fail(kind, message)
            elif what == "ask":
                payload[2].set_exception(RuntimeError(message))
