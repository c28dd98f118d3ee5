"""Sixteen requests at once with one long prefix that nobody knows yet: it should be computed once."""

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.servers import Daemon, vocabulary
from benchmarks.throughput import at_once

TITLE = "A burst of siblings"


def run(bench: Bench) -> None:
    """Compare the burst with one cold prefill and the suffixes one after the other, each in a fresh daemon."""
    model = bench.need_model()
    count, shared, own = bench.size(16, 3), bench.size(2048, 128), bench.size(32, 8)
    vocab = vocabulary(model)
    with Daemon(model, bench.folder / "burst") as daemon:
        daemon.client().complete(workloads.ids("warm", 32, vocab), 1)
        burst, timings = at_once(daemon, workloads.forks(bench.seed, count, shared, own, vocab), count, 1)
        daemon.stop()
    bench.say(f"cached tokens of the siblings: {sorted(t.cached_tokens for t in timings)}")
    prompts = workloads.forks(bench.seed + 1, count, shared, own, vocab)
    with Daemon(model, bench.folder / "alone") as daemon:
        daemon.client().complete(workloads.ids("warm", 32, vocab), 1)
        first, _ = at_once(daemon, [prompts[0][:shared]], 1, 1)
        rest, _ = at_once(daemon, prompts, 1, 1)
        daemon.stop()
    bench.value(f"{count} siblings at once, {shared} + {own} tokens", [burst])
    bench.value(f"one cold prefill of {shared}", [first])
    bench.value(f"{count} suffixes of {own}, one after the other", [rest])
    bench.ratio("burst / one prefill and suffixes", burst, first + rest, at_most=1.6)
