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
    bursts, alone = [], []
    for turn in range(bench.size(2, 1)):
        prompts = workloads.forks(bench.seed * 100 + turn, count, shared, own, vocab)
        with Daemon(model, bench.folder / f"burst-{turn}") as daemon:
            daemon.client().complete(workloads.ids("warm", 32, vocab), 1)
            took, timings = at_once(daemon, prompts, count, 1)
            bursts.append(took)
            known = [t.cached_tokens for t in timings]
            daemon.stop()
        bench.say(f"burst of {count}: {took:.2f} s, cached tokens {sorted(known)}")
        prompts = workloads.forks(bench.seed * 100 + 50 + turn, count, shared, own, vocab)
        with Daemon(model, bench.folder / f"alone-{turn}") as daemon:
            daemon.client().complete(workloads.ids("warm", 32, vocab), 1)
            first, _ = at_once(daemon, [prompts[0][:shared]], 1, 1)
            rest, _ = at_once(daemon, prompts, 1, 1)
            alone.append(first + rest)
            daemon.stop()
        bench.say(f"one prefill and {count} suffixes: {first:.2f} + {rest:.2f} s")
    bench.value(f"{count} siblings at once, {shared} + {own} tokens", bursts)
    bench.value(f"one cold prefill of {shared}, then {count} suffixes of {own}", alone)
    bench.compare("burst / one prefill and suffixes", alone, bursts, at_most=1.6)
