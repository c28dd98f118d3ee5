"""Time to the first token over prompt length: cold, hit in memory, hit on disk after a stop and after kill -9, bare engine."""

import time
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.client import Client, Timing
from benchmarks.harness import Bench
from benchmarks.lab import assembled, load, pieces_of
from benchmarks.pages import touch
from benchmarks.read_back import bare_reading
from benchmarks.servers import Daemon

TITLE = "Time to first token"
NEW_TOKENS = 32
KILL_AFTER_S = 1.0


def run(bench: Bench) -> None:
    """Measure each length with prompts and a data directory of its own."""
    model = bench.need_model()
    bare = Bare(load(model, bench.folder))
    for length in (256, 768, 2048) if not bench.quick else (256,):
        _one_length(bench, model, bare, length, vocab=min(bare.engine.facts.vocab_size, 40_000))


def _one_length(bench: Bench, model: Path, bare: "Bare", length: int, vocab: int) -> None:
    data = bench.folder / f"data-{length}"
    count = bench.size(3 if length < 512 else 2, 1)  # long prompts take a minute each
    heads = [workloads.ids(f"{bench.seed}-{length}-{n}", length, vocab) for n in range(count)]
    fresh = iter(range(1_000_000))

    def again(head: list[int]) -> list[int]:
        return head + workloads.ids(f"new-{length}-{next(fresh)}", NEW_TOKENS, vocab)

    with Daemon(model, data) as daemon:
        client = daemon.client()
        client.complete(workloads.ids("warm", 64, vocab))  # the first request of a process pays for MLX's start
        cold = [_cold(client, head) for head in heads]
        memory, ready, ready_again = _beside_bare(bench, client, bare, heads[0], again)
        daemon.stop()
    bare_read = [bare_reading(model, data, head)[0] for head in heads]
    with Daemon(model, data) as daemon:
        client = daemon.client()
        client.complete(workloads.ids("warm-2", 64, vocab))
        stopped = [_hit(client, again(head), length) for head in heads]
        daemon.stop()
    killed = []
    for n in range(count):
        head = workloads.ids(f"{bench.seed}-{length}-killed-{n}", length, vocab)
        with Daemon(model, data) as daemon:
            _cold(daemon.client(), head)
            time.sleep(KILL_AFTER_S)
            daemon.kill()
        with Daemon(model, data) as daemon:
            client = daemon.client()
            client.complete(workloads.ids(f"warm-3-{n}", 64, vocab))
            killed.append(_hit(client, again(head), length))
    _book(bench, length, cold, memory, ready, ready_again, stopped, killed, bare_read)


def _cold(client: Client, prompt: list[int]) -> float:
    touch()
    timing = client.complete(prompt)
    assert timing.cached_tokens < 64, f"{timing.cached_tokens} tokens of a new prompt were known"
    return timing.ttft_s


def _hit(client: Client, prompt: list[int], known: int) -> float:
    touch()
    timing: Timing = client.complete(prompt)
    assert timing.cached_tokens >= known - 16, f"only {timing.cached_tokens} of {known} tokens were a hit"
    return timing.ttft_s


def _beside_bare(bench: Bench, client: Client, bare: "Bare", head: list[int], again: Any) -> tuple[Any, Any, Any]:
    """Run hits in turn with the bare engine on a cache of the same length, which is ready before the clock starts."""
    length = len(head)
    memory, ready, ready_again = [], [], []
    bare.keep(length)
    for turn in range(bench.size(7, 2)):
        ready.append(bare.first_token(NEW_TOKENS))
        memory.append(_hit(client, again(head), length))
        ready_again.append(bare.first_token(NEW_TOKENS))
        bench.say(f"{length} tokens, hit {turn + 1}: {memory[-1]:.3f} s, bare {ready[-1]:.3f} s")
    return memory, ready, ready_again


def _book(
    bench: Bench,
    length: int,
    cold: Any,
    memory: Any,
    ready: Any,
    ready_again: Any,
    stopped: Any,
    killed: Any,
    read: Any,
) -> None:
    series = (
        ("cold", cold),
        ("hit in memory", memory),
        ("bare engine, cache ready", ready),
        ("hit on disk after a stop", stopped),
        ("hit on disk after kill -9", killed),
        ("bare reading, checking, decoding, copying", read),
    )
    medians = {
        name: bench.value(f"{length} tokens, {name}", samples, "s", x=length, series=name) for name, samples in series
    }
    bench.compare(f"{length} + {NEW_TOKENS} tokens: memory hit / bare engine", ready, memory, ready_again, at_most=1.15)
    allowed = medians["hit in memory"] + 1.5 * medians["bare reading, checking, decoding, copying"]
    for name, samples in (("a stop", stopped), ("kill -9", killed)):
        bench.compare(f"{length}: disk hit after {name} / allowed", [allowed], samples, at_most=1.0,
                      note="allowed: memory hit + 1.5 x bare reading")  # fmt: skip
        bench.compare(f"{length}: cold / disk hit after {name}", samples, cold, at_least=30 if length >= 2048 else None)


class Bare:
    """The engine alone, in this process: what a hit could cost at best."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.runs: list[Any] = []
        self.length = 0

    def keep(self, length: int) -> None:
        """Make the pieces of a cache of `length` tokens (real KV, repeated: the model never minds)."""
        self.runs = pieces_of(self.engine, length)
        self.length = self.runs[-1].stop

    def first_token(self, new_tokens: int) -> float:
        """Return seconds that mlx-lm's own `generate_step` takes from a ready cache and `new_tokens` more to a token."""
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        touch()
        cache = assembled(self.engine, self.runs, self.length + new_tokens + 256)
        prompt = mx.array(workloads.ids("bare", new_tokens, self.engine.facts.vocab_size // 2))
        started = time.perf_counter()
        next(generate_step(prompt, self.engine._model, max_tokens=1, prompt_cache=cache.layers))
        return time.perf_counter() - started
