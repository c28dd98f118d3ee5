"""The engine thread's loop: admits requests, alternates prefill chunks with decode steps, answers questions.

Every step is bounded, so that a question or a cancel waits for one chunk or one decode step at most.
"""

import logging
import queue
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from mlxcel.core.tokens import TOKEN_BYTES
from mlxcel.ports import Engine, RowFailed, StepToken
from mlxcel.service.generation import GenerationService
from mlxcel.service.job import Job
from mlxcel.service.order import Waiting, next_waiting, out_of_time
from mlxcel.service.questions import Questions
from mlxcel.service.reuse import Reuse
from mlxcel.service.warmup import WarmUp

log = logging.getLogger("mlxcel.engine")

IDLE_WAIT_S = 0.5
OUT_OF_MEMORY_KEEPS = 0.5  # share of the memory tier that stays after an allocation failed
RUNNING = ("restoring", "prefilling", "decoding")


class EngineLoop:
    """`run` is the engine thread's body once the model is loaded."""

    def __init__(self, service: GenerationService, engine: Engine, reuse: Reuse, questions: Questions) -> None:
        self.service = service
        self.engine = engine
        self.reuse = reuse
        self.questions = questions
        self._now_s = service.now_s
        self._jobs: OrderedDict[str, Job] = OrderedDict()  # by request id, in order of arrival
        self._stop_at_s: float | None = None
        self._paced = self._full = False  # full: who waits can only start once something has ended
        self._after_running: list[Any] = []
        self.warmup: WarmUp | None = None
        reuse.chunk_tokens = service.limits.chunk_tokens
        reuse.live_bytes = self._live_bytes
        reuse.waiting = lambda: [job for job in self._jobs.values() if job.phase == "waiting"]

    def run(self) -> None:
        """Loop until stopped. An exception that gets here is a broken invariant: requests are told, then it is raised."""
        self.service.set_phase("ready", facts=self.engine.facts)
        try:
            while self._step():
                pass
        except BaseException as fault:
            self.service.set_phase("dead", f"{type(fault).__name__}: {fault}")
            for job in list(self._jobs.values()):
                job.fail("engine_fault", "the engine stopped after an internal fault")
                self._forget(job)
            self._refuse_inbox("engine_fault", "the engine stopped after an internal fault")
            raise

    def _step(self) -> bool:
        self._drain_inbox(block=not self._busy() and (bool(self._jobs) or not self._warms()))
        if self._stop_at_s is not None and (not self._jobs or self._now_s() >= self._stop_at_s):
            self._abandon_all()
            return False
        self._answer_when_drained()
        self._warm()
        self._expire()
        self._admit()
        self._prefill_one()
        self._decode()
        self._set_pace()
        return True

    def _live_bytes(self) -> int:
        """Return KV bytes that are held beside the cache: decoding, prefilling, being restored, waiting to be written."""
        on_the_way = sum(job.position for job in self._jobs.values() if job.phase == "prefilling")
        queued = self.questions.spill.queued_bytes() if self.questions.spill is not None else 0
        return self.engine.live_bytes() + on_the_way * self.engine.facts.kv_bytes_per_token + queued

    def _busy(self) -> bool:
        idle = ("restoring", "waiting") if self._full else ("restoring",)
        return any(job.phase not in idle for job in self._jobs.values())

    def _runs(self) -> bool:
        return any(job.phase in RUNNING for job in self._jobs.values())

    def _answer_when_drained(self) -> None:
        """Questions that change the model wait for running answers; new ones start after them."""
        if self._after_running and not self._runs():
            for payload in self._after_running:
                self.questions.answer(*payload)
            self._after_running.clear()

    def _warms(self) -> bool:
        return self.warmup is not None and self._stop_at_s is None and self.warmup.pending()

    def _warm(self) -> None:
        """Use idle time for the next turn of an answer; any request takes precedence."""
        if self.warmup is None:
            return
        if self._jobs:
            self.questions.chore(self.warmup.yield_to_requests)
        elif self._warms():
            self.questions.chore(self.warmup.step)

    def _set_pace(self) -> None:
        """Writes behind go slowly while something computes, flat out when idle."""
        paced = self._busy()
        if paced != self._paced and self.questions.spill is not None:
            self._paced = paced
            self.questions.spill.set_paced(paced)

    # ------------------------------------------------------------------ inbox

    def _drain_inbox(self, block: bool) -> None:
        while True:
            try:
                kind, payload = self.service.inbox.get(block=block, timeout=IDLE_WAIT_S)
            except queue.Empty:
                return
            block = False
            self._handle(kind, payload)

    def _handle(self, kind: str, payload: Any) -> None:
        match kind:
            case "submit":
                self._jobs[payload.id] = payload
            case "cancel":
                self._cancel(payload)
            case "ask" if payload[0] == "set_lora" and self._runs():
                self._after_running.append(payload)
            case "ask":
                self.questions.answer(*payload)
            case "spilled":
                self.questions.chore(partial(self.reuse.cache.record_spills, payload))
            case "restored":
                self._guard(*payload)
            case "chore":
                self.questions.chore(payload)
            case "stop":
                self._stop_at_s = self._now_s() + payload

    def _refuse_inbox(self, kind: str, message: str) -> None:
        for _, _, answer in self._after_running:
            answer.set_exception(RuntimeError(message))
        while True:
            try:
                what, payload = self.service.inbox.get(block=False)
            except queue.Empty:
                return
            if what == "submit":
                payload.fail(kind, message)
                self.service.ended()
            elif what == "ask":
                payload[2].set_exception(RuntimeError(message))

    # ------------------------------------------------------------------ admission

    def _admit(self) -> None:
        """Look up the next waiting request when no other prefills: what it finds then includes all that came before."""
        if self._after_running or any(job.phase == "prefilling" for job in self._jobs.values()):
            return
        now_s = self._now_s()
        waiting = [Waiting(job.id, now_s - job.submitted_s) for job in self._jobs.values() if job.phase == "waiting"]
        chosen = next_waiting(waiting, self._would_adopt, lambda name: self._fits(self._jobs[name]))
        self._full = chosen is None
        if chosen is not None:
            job = self._jobs[chosen]
            job.prefill_started_s = now_s
            self._guard(job, partial(self.reuse.begin, job, partial(self._restored, job)))

    def _would_adopt(self, request_id: str) -> int:
        """Return how many tokens of a waiting request are cached now."""
        return self.reuse.known_tokens(self._jobs[request_id])

    def _expire(self) -> None:
        """End what has run out of time; checked between steps, so a limit is kept to about one chunk."""
        limits, now_s = self.service.limits, self._now_s()
        for job in list(self._jobs.values()):
            decoding_s = now_s - job.first_token_s if job.generated else 0.0
            why = out_of_time(
                0.0 if job.generated else now_s - job.submitted_s, decoding_s, limits.timeout_s, limits.decode_timeout_s
            )
            if why:
                self._fail(job, "timeout", why, outcome="cancelled")

    def _restored(self, job: Job, work: Callable[[], None]) -> None:
        self.service.post("restored", (job, work))

    def _fits(self, job: Job) -> bool:
        """A batch is rectangular: charge rows x the longest row. One request alone always fits."""
        running = [j for j in self._jobs.values() if j.phase in RUNNING]
        limits = self.service.limits
        if not running:
            return True
        if len(running) >= limits.batch_rows:
            return False
        longest = max(j.total + j.request.max_tokens for j in [*running, job])
        need = (len(running) + 1) * longest * self.engine.facts.kv_bytes_per_token
        return not limits.live_kv_bytes or need <= limits.live_kv_bytes

    # ------------------------------------------------------------------ work

    def _prefill_one(self) -> None:
        job = next((j for j in self._jobs.values() if j.phase == "prefilling"), None)
        if job is not None:
            self._guard(job, partial(self._prefill_chunk, job))

    def _prefill_chunk(self, job: Job) -> None:
        stop = job.next_stop(self.service.limits.chunk_tokens)
        if stop > job.position and not job.in_one_pass(stop):
            started = self._now_s()
            self.engine.prefill(job.cache, job.chunk(stop))
            self.reuse.rates.saw_prefill(stop - job.position, self._now_s() - started)
            job.position = stop
            self.reuse.prefilled(job)
        job.progress()  # also where everything came from the cache: the client learns how much
        if not job.decodes:
            if stop == job.total:
                self._finish(job, "length")
        elif stop == job.total - 1:
            last = int.from_bytes(job.request.tokens[-TOKEN_BYTES:], "little")
            before = job.prompt_before_last()
            job.row = self.engine.start_row(job.cache, last, before, job.request.params, job.request.max_tokens)
            job.cache, job.phase, job.position = None, "decoding", stop

    def _decode(self) -> None:
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
                self._guard(job, partial(self._token, job, step))

    def _token(self, job: Job, step: StepToken) -> None:
        stopped = job.take_token(step, self._now_s())
        if stopped or step.finish:
            self._finish(job, "stop" if stopped else str(step.finish))

    def _finish(self, job: Job, reason: str) -> None:
        """Answer first, then keep: the client does not wait for the copy."""
        job.finish(reason, self._now_s())
        self._forget(job)
        last = job.request.tokens[-TOKEN_BYTES:]
        cache, covered = self.engine.finish_row(job.row) if job.decodes else (job.cache, last)
        self.reuse.donate(job, cache, covered)
        if self.warmup is not None:
            self.warmup.offer(job)

    # ------------------------------------------------------------------ unhappy ends

    def _guard(self, job: Job, work: Callable[[], None]) -> None:
        """Run one step of one request; a fault ends that request, not the daemon. A broken invariant stops the cache too."""
        try:
            work()
        except Exception as fault:
            if isinstance(fault, AssertionError):
                self.reuse.cache.suspend(f"broken invariant: {fault}")
            log.exception("request %s failed", job.id)
            kind = "engine_fault"
            if _no_memory(fault):
                kind = "out_of_memory"
                self.questions.chore(partial(self.questions.shrink, OUT_OF_MEMORY_KEEPS))
            self._fail(job, kind, f"{type(fault).__name__}: {fault}")

    def _cancel(self, request_id: str) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._fail(job, "cancelled", "the client left", outcome="cancelled")

    def _fail(self, job: Job, kind: str, message: str, outcome: str = "failed") -> None:
        if job.phase == "decoding" and job.row >= 0:
            self.engine.drop_row(job.row)
        job.fail(kind, message)
        job.cache = None
        self._forget(job)
        self.reuse.end(job, outcome, message[:200])

    def _forget(self, job: Job) -> None:
        self._full = False
        if self._jobs.pop(job.id, None) is not None:
            self.service.ended()

    def _abandon_all(self) -> None:
        for job in list(self._jobs.values()):
            self._fail(job, "shutting_down", "the daemon is stopping", outcome="cancelled")
        self._refuse_inbox("shutting_down", "the daemon is stopping")


def _no_memory(fault: Exception) -> bool:
    """MLX reports a failed allocation as a RuntimeError that says so."""
    return isinstance(fault, MemoryError) or (isinstance(fault, RuntimeError) and "allocat" in str(fault).lower())
