"""What the cache costs where it can't help: a cold request, and each decoded token. Beside the same daemon switched off,
and that beside itself."""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import workloads
from benchmarks.client import Client
from benchmarks.harness import Bench
from benchmarks.pages import touch
from benchmarks.servers import Daemon, vocabulary
from benchmarks.statistics import median

TITLE = "The cache's cost"
SETTLE_S = 0.5


def run(bench: Bench) -> None:
    """Three daemons over three data directories, asked in turn: one with the cache, two without."""
    model = bench.need_model()
    # Those that wait while another computes share the cores fairly. Two processes of one program differ by a percent or two
    # (where their memory happens to lie), so the cache is held to what two daemons without one differ by.
    off = ("--no-cache-prompt",)
    with (
        Daemon(model, bench.folder / "on") as on,
        Daemon(model, bench.folder / "off", *off) as without,
        Daemon(model, bench.folder / "off-again", *off) as again,
    ):
        _compare(bench, model, without.client(), on.client(), again.client())
        for daemon in (on, without, again):
            daemon.stop()


def _compare(bench: Bench, model: Path, without: Client, with_cache: Client, again: Client) -> None:
    length, answer, rounds = bench.size(512, 64), bench.size(48, 8), bench.size(9, 2)
    vocab, fresh = vocabulary(model), iter(range(1_000_000))
    short = workloads.ids(f"{bench.seed}-short", 48, vocab)

    def cold(client: Client) -> Callable[[], float]:
        return lambda: settled(client.complete(workloads.ids(f"{bench.seed}-{next(fresh)}", length, vocab)).ttft_s)

    def decode(client: Client) -> Callable[[], float]:
        return lambda: median(client.complete(short, answer).gaps_s)

    for case, arm in (
        (f"cold request of {length} tokens: time to first token", cold),
        (f"decode, seconds a token over {answer} tokens", decode),
    ):
        bench.pair(
            case,
            a=arm(without),
            b=arm(with_cache),
            a_again=arm(again),
            rounds=rounds,
            target="A/A",
            names=("cache off", "cache on"),
        )


def settled(cost: float) -> float:
    """Return the cost once writing behind is done, so that it does not fall on the other's turn."""
    time.sleep(SETTLE_S)
    touch()
    return cost
