"""How much of a core the event log takes at 10 requests a second: encoding, queueing, writing and syncing."""

import time

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.lab import Core
from mlxcel.core import commands as cmd
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.record import encode_record
from mlxcel.core.tokens import from_ids
from storage.event_log.recovery import open_log

TITLE = "The event log's share of a core"
RATE = 10.0
PROMPT, SHARED, ANSWER = 2048, 1536, 200


def run(bench: Bench) -> None:
    """Play requests of 2k tokens at 10 a second and read this process's CPU time with the log and without it.

    The difference would drown in noise, so what belongs to the log alone is played: records made before, then encoded
    again and appended on time, while nothing else runs.
    """
    seconds = bench.size(20, 2)
    count = int(seconds * RATE)
    prompts = workloads.forks(bench.seed, count, SHARED, PROMPT - SHARED)
    core = Core()
    opened = open_log(bench.folder / "log")
    idle = _cpu_of(lambda: time.sleep(seconds))
    used = 0.0
    records = written = 0
    started = time.perf_counter()
    before_all = time.process_time()
    deciding = 0.0
    for number, prompt in enumerate(prompts):
        wait = started + number / RATE - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        at = core.at_us + 1
        name = f"request-{number}"
        steps = [core.arrival(from_ids(prompt), name)]
        steps.append(cmd.SealPrefix(at_us=at, request=name, length=PROMPT - 1))

        answer = from_ids(workloads.ids(f"answer-{number}", ANSWER))
        steps.append(cmd.DonatePrefix(at_us=at, request=name, generated=answer, length=PROMPT + ANSWER))
        for step in steps:
            begun = time.thread_time()
            events = decide(core.state, step)
            deciding += time.thread_time() - begun
            if events:
                payload = encode_record(core.state, step, events)
                opened.writer.append(payload)
                records, written = records + 1, written + len(payload)
                begun = time.thread_time()
                apply(core.state, step.at_us, events)
                deciding += time.thread_time() - begun
    opened.writer.wait_durable(opened.writer.next_seq() - 1, 10.0)
    elapsed = time.perf_counter() - started
    used = time.process_time() - before_all - deciding
    opened.writer.close()
    bench.value("CPU share of the log", [used / elapsed], "of a core", note=f"idle process: {idle / seconds:.5f}")
    bench.value("CPU share of deciding and applying", [deciding / elapsed], "of a core")
    bench.value("records a request", [records / count], "")
    bench.value("bytes a request in the log", [written / count], "B")
    bench.compare("the log's share of a core / 1 %", [0.01], [used / elapsed], at_most=1.0)
    bench.limit("The share counts making the commands too, which a server does anyway: the log's own is smaller still.")


def _cpu_of(work: object) -> float:
    before = time.process_time()
    assert callable(work)
    work()
    return time.process_time() - before
