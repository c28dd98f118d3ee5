"""A chat service's load in small, beside the same all equal and all random: what each would make one believe."""

import time

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.load import play, shapes, summary
from benchmarks.servers import Daemon, vocabulary

TITLE = "Load as it was, and the two lies"


def run(bench: Bench) -> None:
    """Play each shape against a fresh daemon, one request after the other."""
    model = bench.need_model()
    vocab = vocabulary(model)
    load = workloads.chatter(bench.seed, bench.size(30, 4), rate=1.0, block_tokens=bench.size(32, 16), vocab=vocab)
    load = [arrival._replace(answer_tokens=min(arrival.answer_tokens, 8)) for arrival in load]
    known = {}
    for name, arrivals in shapes(load, bench.seed, vocab).items():
        with Daemon(model, bench.folder / name.replace(" ", "-")) as daemon:
            started = time.perf_counter()
            timings = play(daemon.url, arrivals, speed=0)
            figures = summary(timings, time.perf_counter() - started)
            daemon.stop()
        known[name] = workloads.prefix_share([a.prompt for a in arrivals])
        bench.value(f"{name}: time to first token", [t.ttft_s for t in timings])
        bench.value(f"{name}: requests a second", [len(timings) / figures["elapsed_s"]], "1/s", "higher")
        bench.value(f"{name}: share of prompt tokens from the cache", [figures["cached_share"]], "", "higher",
                    note=f"an unbounded cache would know {known[name]:.3f}")  # fmt: skip
