"""A load as it was: `python -m benchmarks.load URL SOURCE` sends prompts that share, last and arrive as recorded ones did.

SOURCE is a data directory or an exported history, a Mooncake trace (.jsonl), or "chatter" (made up). Prompts are made of
synthetic tokens: equal prefixes stay equal, block by block, and nothing of the recorded text is in them. Beside it the two
lies: all prompts equal, all different.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import workloads
from benchmarks.client import Client, Timing
from benchmarks.recorded import read_source
from benchmarks.statistics import median
from benchmarks.workloads import Arrival


def play(
    url: str,
    load: list[Arrival],
    speed: float = 1.0,
    as_text: bool = False,
    at_most: int = 64,
    done: Callable[[int, Timing], None] = lambda number, timing: None,
) -> list[Timing]:
    """Send every arrival at its time divided by `speed` (0: as fast as answers come), each on a thread of its own.

    At most `at_most` are under way; a later one then waits, as a client behind a full queue does. Refusals are counted
    by their status and not tried again. Raises what a connection raised.
    """
    timings: list[Timing | None] = [None] * len(load)
    faults: list[Exception] = []
    room = threading.Semaphore(at_most if speed else 1)
    started = time.perf_counter()

    def send(number: int, arrival: Arrival) -> None:
        client = Client(url)
        try:
            prompt = workloads.spoken(arrival.prompt) if as_text else arrival.prompt
            timing = client.complete(prompt, arrival.answer_tokens)
            timings[number] = timing
            done(number, timing)
        except (OSError, ValueError) as fault:
            faults.append(fault)
        finally:
            client.close()
            room.release()

    threads = []
    for number, arrival in enumerate(load):
        if speed:
            time.sleep(max(0.0, started + arrival.at_s / speed - time.perf_counter()))
        room.acquire()
        if faults:
            break
        thread = threading.Thread(target=send, args=(number, arrival))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return [timing for timing in timings if timing is not None]


def summary(timings: list[Timing], elapsed_s: float) -> dict[str, Any]:
    """Return what a load's timings come to."""
    served = [t for t in timings if t.status == 200]
    ttft = sorted(t.ttft_s for t in served)
    prompt = sum(t.prompt_tokens for t in served)
    return {
        "requests": len(timings),
        "refused": len(timings) - len(served),
        "elapsed_s": elapsed_s,
        "ttft_median_s": median(ttft) if ttft else None,
        "ttft_p90_s": ttft[int(0.9 * (len(ttft) - 1))] if ttft else None,
        "prompt_tokens": prompt,
        "cached_tokens": sum(t.cached_tokens for t in served),
        "completion_tokens": sum(t.completion_tokens for t in served),
        "cached_share": sum(t.cached_tokens for t in served) / prompt if prompt else 0.0,
    }


def shapes(load: list[Arrival], seed: int, vocab: int) -> dict[str, list[Arrival]]:
    """Return the load and the two lies beside it; all of the same lengths and times."""
    return {
        "as it was": load,
        "all equal": workloads.all_equal(load),
        "all random": workloads.all_random(load, seed, vocab),
    }


def main(arguments: list[str]) -> int:
    """Play a source against a server, print figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("url", help="address of an OpenAI-compatible server, without /v1")
    parser.add_argument("source", help="data directory, exported history, trace.jsonl, or chatter")
    parser.add_argument("--speed", type=float, default=1.0, help="times real time; 0: one after the other, no waiting")
    parser.add_argument("--requests", type=int, default=100, help="how many from the start")
    parser.add_argument("--scale", type=float, default=1.0, help="prompt and answer lengths are multiplied by this")
    parser.add_argument("--vocab", type=int, default=40_000, help="token ids stay below")
    parser.add_argument("--text", action="store_true", help="send invented words: for servers that take no token ids")
    parser.add_argument("--lies", action="store_true", help="play it all equal and all random, too")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    load = read_source(options.source, options.requests, options.scale, options.vocab, options.seed)
    kinds = shapes(load, options.seed, options.vocab)
    console = Console(stderr=True)
    for name, arrivals in kinds.items() if options.lies else [("as it was", load)]:
        share = workloads.prefix_share([a.prompt for a in arrivals])
        console.print(f"{name}: {len(arrivals)} requests, {share:.1%} of prompt tokens known before")
        started = time.perf_counter()
        timings = play(options.url, arrivals, options.speed, options.text)
        figures = summary(timings, time.perf_counter() - started)
        print(json.dumps({"load": name, "source": Path(options.source).name, "known_share": share, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
