"""Scheduled work. Jobs post to the engine thread or read files; nothing runs here that could delay a request."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

log = logging.getLogger("mlxcel")


class Every(BaseTrigger):  # type: ignore[misc]
    """Fire `seconds` after the last look at the clock. Missed times are not made up, so a clock that jumps ahead by years
    costs one run, not millions."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the next time; always after `now`."""
        return now + timedelta(seconds=self.seconds)


class Job:
    """One piece of standing work and how its last run went. Never two runs at once, whoever starts them."""

    def __init__(self, name: str, period_s: float, work: Callable[[], Any]) -> None:
        self.name = name
        self.period_s = period_s
        self._work = work
        self._running = threading.Lock()
        self.runs = 0
        self.last: dict[str, Any] = {"started": None, "took_s": None, "result": None, "error": None}

    def run(self) -> bool:
        """Run now and wait for the end; False, and nothing done, when it is running already."""
        if not self._running.acquire(blocking=False):
            return False
        started, began_s = datetime.now(UTC), time.monotonic()
        result, error = None, None
        try:
            result = self._work()
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            log.warning("scheduled job %s failed: %s", self.name, error)
        finally:
            took_s = round(time.monotonic() - began_s, 3)
            self.runs += 1
            self.last = {"started": started.isoformat(), "took_s": took_s, "result": result, "error": error}
            self._running.release()
        return True


class Jobs:
    """All standing work of one daemon."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._scheduler: BackgroundScheduler | None = None

    def start(self, chores: dict[str, tuple[float, Callable[[], Any]]]) -> None:
        """Run each chore every so many seconds."""
        self._jobs = {name: Job(name, period_s, work) for name, (period_s, work) in chores.items()}
        self._scheduler = BackgroundScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        for name, job in self._jobs.items():
            self._scheduler.add_job(job.run, Every(job.period_s), id=name)
        self._scheduler.start()

    def stop(self) -> None:
        """Start nothing new; a run that goes on is not waited for."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)

    def run(self, name: str) -> bool:
        """Run one now; False when it is running already. Raises KeyError for an unknown name."""
        return self._jobs[name].run()

    def listing(self) -> list[dict[str, Any]]:
        """Return what there is, with last and next runs."""
        return [self._line(job) for job in self._jobs.values()]

    def _line(self, job: Job) -> dict[str, Any]:
        planned = self._scheduler.get_job(job.name) if self._scheduler is not None else None
        next_run = planned.next_run_time.isoformat() if planned is not None and planned.next_run_time else None
        return {"name": job.name, "period_s": job.period_s, "runs": job.runs, "last": job.last, "next": next_run}
