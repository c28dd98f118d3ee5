"""Scheduled work. APScheduler only posts to the engine thread; nothing runs here that could delay a request."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger


class Every(BaseTrigger):  # type: ignore[misc]
    """Fire `seconds` after the last look at the clock. Missed times are not made up, so a clock that jumps ahead by years
    costs one run, not millions."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the next time; always after `now`."""
        return now + timedelta(seconds=self.seconds)


def start_schedule(chores: dict[str, tuple[float, Callable[[], Any]]]) -> BackgroundScheduler:
    """Start a scheduler that calls each chore every so many seconds, never two runs of one at once."""
    scheduler = BackgroundScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
    for name, (seconds, chore) in chores.items():
        scheduler.add_job(chore, Every(seconds), id=name)
    scheduler.start()
    return scheduler
