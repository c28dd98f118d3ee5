"""What the cache costs where it can't help: a cold request, and each decoded token. Beside the same daemon switched off."""

import time

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.pages import touch
from benchmarks.servers import Daemon, vocabulary
from benchmarks.statistics import median

TITLE = "The cache's cost"
SETTLE_S = 0.5


def run(bench: Bench) -> None:
    """Two daemons over two data directories, asked in turn: one with the cache, one without."""
    model = bench.need_model()
    length, answer, rounds = bench.size(512, 64), bench.size(48, 8), bench.size(9, 2)
    # One of two waits while the other computes, so the two share the cores fairly.
    with Daemon(model, bench.folder / "on") as on, Daemon(model, bench.folder / "off", "--no-cache-prompt") as off:
        fresh = iter(range(1_000_000))
        with_cache, without = on.client(), off.client()
        vocab = vocabulary(model)

        def prompt() -> list[int]:
            return workloads.ids(f"{bench.seed}-{next(fresh)}", length, vocab)

        bench.pair(
            f"cold request of {length} tokens: time to first token",
            a=lambda: settled(without.complete(prompt()).ttft_s),
            b=lambda: settled(with_cache.complete(prompt()).ttft_s),
            rounds=rounds,
            target="A/A",
            names=("cache off", "cache on"),
        )
        short = workloads.ids(f"{bench.seed}-short", 48, vocab)
        bench.pair(
            f"decode, seconds a token over {answer} tokens",
            a=lambda: median(without.complete(short, answer).gaps_s),
            b=lambda: median(with_cache.complete(short, answer).gaps_s),
            rounds=rounds,
            target="A/A",
            names=("cache off", "cache on"),
        )
        on.stop()
        off.stop()


def settled(cost: float) -> float:
    """Return the cost once writing behind is done, so that it does not fall on the other's turn."""
    time.sleep(SETTLE_S)
    touch()
    return cost
