"""How long a start takes until the first request is served: empty, and with what many requests left behind."""

import time
from pathlib import Path

from benchmarks import workloads
from benchmarks.harness import Bench, once
from benchmarks.lab import Core
from benchmarks.servers import Daemon, vocabulary
from mlxcel.core.checkpoint import decode_state, encode_state

TITLE = "Start"


def run(bench: Bench) -> None:
    """Start daemons, and decode the checkpoint of a large state by itself."""
    model = bench.need_model()
    empty = [_start(model, bench.folder / f"empty-{n}") for n in range(bench.size(3, 1))]
    bench.value("start with an empty data directory, until ready", empty)
    data = bench.folder / "used"
    prompts = workloads.forks(bench.seed, bench.size(200, 5), 64, 32, vocabulary(model))
    with Daemon(model, data) as daemon:
        client = daemon.client()
        for number, prompt in enumerate(prompts):
            client.complete(prompt, 1)
            if number % 50 == 49:
                bench.say(f"{number + 1} requests served")
        daemon.stop()
    stopped = [_start(model, data) for _ in range(bench.size(3, 1))]
    bench.value(f"start after {len(prompts)} requests and a stop", stopped)
    killed = []
    for _ in range(bench.size(3, 1)):
        with Daemon(model, data) as daemon:
            client = daemon.client()
            for prompt in prompts[:5]:
                client.complete(prompt, 1)
            daemon.kill()
        killed.append(_start(model, data))
    bench.value("start after kill -9", killed)
    bench.compare("start with content / empty", empty, stopped)
    _checkpoint(bench)


def _start(model: Path, data_dir: Path) -> float:
    with Daemon(model, data_dir) as daemon:
        ready = daemon.ready_s
        daemon.stop()
    return ready


def _checkpoint(bench: Bench) -> None:
    """Time encoding and decoding of a state with many entries: what a start folds before anything else."""
    count = bench.size(10_000, 200)
    core = Core()
    core.fill(workloads.ids(f"entry-{n}", 96) for n in range(count))
    started = time.perf_counter()
    payload = encode_state(core.state)
    bench.value(f"encode a checkpoint of {count} entries", [time.perf_counter() - started])
    bench.value(f"size of a checkpoint of {count} entries", [len(payload)], "B")
    samples = [once(lambda: _decode(payload)) for _ in range(3)]
    bench.value(f"decode a checkpoint of {count} entries", samples)


def _decode(payload: bytes) -> None:
    decode_state(payload)
