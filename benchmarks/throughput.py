"""Requests and tokens a second with 1, 4 and 16 clients at once, where 0, 50 or 95 % of each prompt is shared."""

import threading
import time
from collections.abc import Sequence

from benchmarks import workloads
from benchmarks.client import Timing
from benchmarks.harness import Bench
from benchmarks.pages import touch
from benchmarks.servers import Daemon, Server, vocabulary

TITLE = "Throughput"
CLIENTS = (1, 4, 16)
SHARES = (0.0, 0.5, 0.95)


def run(bench: Bench) -> None:
    """One daemon per cell, beside the same with the cache off where something is shared."""
    model = bench.need_model()
    length, answer = bench.size(256, 32), bench.size(16, 2)
    for clients in CLIENTS if not bench.quick else (1, 2):
        count = max(clients, bench.size(8, 2))
        for share in SHARES if not bench.quick else (0.95,):
            prompts = workloads.shared_share(bench.seed, count + 1, length, share, vocabulary(model))
            took = {}
            for name, flags in (("on", ()), ("off", ("--no-cache-prompt",))):
                data = bench.folder / f"{clients}-{share}-{name}"
                with Daemon(model, data, *flags) as server:
                    # What is shared has been asked for once: the common case of a system prompt.
                    server.client().complete(prompts[0], 1)
                    elapsed, timings = at_once(server, prompts[1:], clients, answer)
                    server.stop()
                case = f"{clients} clients, {share:.0%} shared, cache {name}"
                refused = [t.status for t in timings if t.status != 200]
                assert not refused, f"{case}: refused with {refused}"
                tokens = sum(t.prompt_tokens + t.completion_tokens for t in timings)
                bench.value(f"{case}: tokens a second", [tokens / elapsed], "tok/s", "higher",
                            x=clients, series=f"{share:.0%} shared, {name}")  # fmt: skip
                bench.value(f"{case}: time to first token", [t.ttft_s for t in timings], "s")
                took[name] = elapsed
            bench.ratio(
                f"{clients} clients, {share:.0%} shared: time with the cache / without", took["on"], took["off"]
            )
    bench.limit("A CPU prefills and decodes rows one after the other: more clients can't raise its tokens a second.")


def at_once(
    server: Server, prompts: Sequence[list[int] | str], clients: int, max_tokens: int
) -> tuple[float, list[Timing]]:
    """Send all prompts through `clients` connections; returns seconds for all and each request's timing."""
    waiting = list(enumerate(prompts))
    timings: list[Timing | None] = [None] * len(waiting)
    faults: list[Exception] = []
    lock = threading.Lock()

    def work() -> None:
        client = server.client()
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    number, prompt = waiting.pop(0)
                timings[number] = client.complete(prompt, max_tokens)
        except Exception as fault:
            faults.append(fault)

    touch()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return time.perf_counter() - started, [t for t in timings if t is not None]
