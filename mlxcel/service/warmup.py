"""Warming the next turn: in idle time a session's snapshot is extended over the answer as the template will show it.

The next prompt then finds all but its new user message captured. Newest answer first, a bounded queue, given up for any
request. Never worse than not warming: what it builds on stays (an interval point at the end of the turn, the
completion), and where nothing is there to build on, it does nothing.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.tokens import common_tokens, count, cut
from mlxcel.ports import Engine
from mlxcel.service.boundaries import BOUNDARY
from mlxcel.service.job import Job
from mlxcel.service.reuse import Reuse

log = logging.getLogger("mlxcel.cache")

QUEUE = 8  # waiting answers; the oldest gives way
ATTEMPTS = 3  # how often one may be given up for a request before it is dropped


class Warming:
    """One answer's next turn. `tokens`: its certain beginning, None until it is rendered."""

    def __init__(self, number: int, job: Job) -> None:
        self.id = f"warm-{number}"
        self.request = job.request
        self.namespace = job.namespace
        self.said = "".join(job.said)
        self.tokens: bytes | None = None
        self.cache: Any = None
        self.position = 0
        self.attempts = 0


class WarmUp:
    """Engine thread only. `step` does one bounded piece of work: a render, a look-up, or one chunk of prefill."""

    def __init__(self, reuse: Reuse, engine: Engine, chunk_tokens: int) -> None:
        self.reuse = reuse
        self.engine = engine
        self.chunk_tokens = chunk_tokens
        self.run = self.skipped = 0  # since the process began
        self._waiting: deque[Warming] = deque()
        self._now: Warming | None = None
        self._offered = 0

    def offer(self, job: Job) -> None:
        """Take note of a healthy answer. `job.namespace` is 0 for one that went past the cache."""
        if job.request.next_turn is None or not job.namespace or not job.request.options.store:
            return
        self._offered += 1
        self._waiting.append(Warming(self._offered, job))
        if len(self._waiting) > QUEUE:
            self._waiting.popleft()
            self.skipped += 1

    def pending(self) -> bool:
        """True when `step` has something to do."""
        return bool(self._waiting or self._now) and not self.reuse.cache.suspended

    def yield_to_requests(self) -> None:
        """A request has come: let go of everything live; the warming is tried again later."""
        now = self._now
        if now is None:
            return
        self._end("warmup_preempted")
        now.attempts += 1
        if now.attempts < ATTEMPTS:
            self._waiting.append(now)
        else:
            self.skipped += 1

    def forget(self) -> None:
        """Drop everything: what was computed before no longer fits the model."""
        self.yield_to_requests()
        self.skipped += len(self._waiting)
        self._waiting.clear()

    def step(self) -> None:
        """Do the next piece of work. A fault drops the warming, not the daemon."""
        if self._now is None:
            self._now = self._waiting.pop()
            self._guard(self._begin)
        else:
            self._guard(self._chunk)

    def _guard(self, work: Callable[[Warming], None]) -> None:
        now = self._now
        assert now is not None
        try:
            work(now)
        except AssertionError:
            self._now = None
            raise
        except Exception as fault:
            log.warning("warm-up %s is given up: %s: %s", now.id, type(fault).__name__, fault)
            self._skip()

    def _begin(self, now: Warming) -> None:
        if now.tokens is None:
            assert now.request.next_turn is not None
            now.tokens = now.request.next_turn(now.said)
        if now.tokens is None or not self._worth_it(now):
            self._skip()
            return
        adopted = self._adopt(now)
        if adopted is None or adopted.restore:
            self._skip()
            return
        now.cache = self.reuse.assemble(now.id, count(now.tokens))
        now.position = adopted.length

    def _worth_it(self, now: Warming) -> bool:
        """The next turn must go on from this one, and fit: a template that rewrites the past warms nothing."""
        assert now.tokens is not None
        ends = [at for at in now.request.boundaries if at not in now.request.shared]
        turn = max(ends, default=0)
        fits = turn < count(now.tokens) < self.engine.facts.context_tokens
        return fits and common_tokens(now.tokens, now.request.tokens) >= turn

    def _adopt(self, now: Warming) -> ev.PrefixAdopted | None:
        cache, scope = self.reuse.cache, now.request.scope
        ttl_s = now.request.options.ttl_s
        assert now.tokens is not None
        now.cache, now.position = None, 0
        events = cache.run(
            cmd.AdoptPrefix(
                at_us=cache.now_us(),
                request=now.id,
                namespace=now.namespace,
                template_sig=scope.template_sig,
                session_key=scope.session_key,
                tokens=now.tokens,
                ttl_us=-1 if ttl_s is None else int(ttl_s * 1e6),
                background=True,
            )
        )
        return next((e for e in events if isinstance(e, ev.PrefixAdopted)), None)

    def _chunk(self, now: Warming) -> None:
        assert now.tokens is not None
        total = count(now.tokens)
        stop = min((now.position // self.chunk_tokens + 1) * self.chunk_tokens, total)
        self.engine.prefill(now.cache, cut(now.tokens, now.position, stop))
        now.position = stop
        if stop < total:
            return
        self.reuse.capture(now.id, now.cache, total, BOUNDARY)
        restored = self.reuse.cache.state.requests[now.id].adopted
        log.debug("prompt cache warm-up done: restored=%d delta=%d warmed=%d", restored, total - restored, total)
        self._end("warmed")
        self.run += 1

    def _skip(self) -> None:
        self._end("warmup_skipped")
        self.skipped += 1

    def _end(self, outcome: str) -> None:
        now, self._now = self._now, None
        assert now is not None
        now.cache = None
        cache = self.reuse.cache
        if now.id in cache.state.requests and not cache.suspended:
            cache.run(cmd.EndRequest(at_us=cache.now_us(), request=now.id, outcome=outcome))
