"""Standing work: one run at a time, and a clock that jumps costs one run."""

import threading
from datetime import UTC, datetime, timedelta

from mlxcel.schedule import Every, Job, Jobs


def test_a_clock_that_jumps_costs_one_run() -> None:
    """From 1970 to 2200 the next time is one period from now: nothing is made up (B114)."""
    trigger = Every(1.0)
    at = datetime(1970, 1, 2, tzinfo=UTC)
    for now in (at, datetime(2030, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC), at):
        fire = trigger.get_next_fire_time(at, now)
        assert fire - now == timedelta(seconds=1)
        at = fire


def test_never_two_runs_of_one_job() -> None:
    """While a job runs another start is refused; afterwards it runs again."""
    inside, go_on = threading.Event(), threading.Event()

    def work() -> str:
        inside.set()
        assert go_on.wait(10)
        return "done"

    job = Job("slow", 60.0, work)
    thread = threading.Thread(target=job.run)
    thread.start()
    assert inside.wait(10)
    assert job.run() is False
    go_on.set()
    thread.join()
    assert (job.runs, job.last["result"], job.last["error"]) == (1, "done", None)
    assert job.run() is True


def test_a_failed_run_is_told_and_ends_nothing() -> None:
    """An exception is kept as the job's last error; the schedule goes on."""
    jobs = Jobs()
    jobs.start({"broken": (3600.0, lambda: 1 // 0)})
    try:
        assert jobs.run("broken") is True
        line = jobs.listing()[0]
        assert line["last"]["error"].startswith("ZeroDivisionError")
        assert line["next"] is not None
    finally:
        jobs.stop()
