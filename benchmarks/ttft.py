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
    count = bench.size(3 if length < 512 else 2, 1)  # long prompts take half a minute each
    heads = [workloads.ids(f"{bench.seed}-{length}-{n}", length, vocab) for n in range(2 * count)]
    same, longer = heads[:count], heads[count:]
    fresh = iter(range(1_000_000))

    def again(head: list[int]) -> list[int]:
        return head + workloads.ids(f"new-{length}-{next(fresh)}", NEW_TOKENS, vocab)

    took: dict[str, list[float]] = {}
    with Daemon(model, data) as daemon:
        client = daemon.client()
        client.complete(workloads.ids("warm", 64, vocab))  # the first request of a process pays for MLX's start
        took["cold"] = [_cold(client, head) for head in heads]
        took["hit in memory"], took["bare"], ready_again = _beside_bare(bench, client, bare, longer[0], again)
        took["same prompt, hit in memory"] = [_hit(client, same[0], length) for _ in range(bench.size(7, 2))]
        daemon.stop()
    took["bare reading"] = [bare_reading(model, data, head)[0] for head in heads]
    with Daemon(model, data) as daemon:
        client = daemon.client()
        client.complete(workloads.ids("warm-2", 64, vocab))
        took["hit on disk after a stop"] = [_hit(client, again(head), length) for head in longer]
        took["same prompt, hit on disk after a stop"] = [_hit(client, head, length) for head in same]
        daemon.stop()
    took["same prompt, hit on disk after kill -9"] = [
        _after_kill(bench, model, data, length, vocab, n) for n in range(count)
    ]
    _book(bench, length, took, ready_again)


def _after_kill(bench: Bench, model: Path, data: Path, length: int, vocab: int, number: int) -> float:
    """Ask once, kill the daemon a second after the answer, ask the same again."""
    prompt = workloads.ids(f"{bench.seed}-{length}-killed-{number}", length, vocab)
    with Daemon(model, data) as daemon:
        _cold(daemon.client(), prompt)
        time.sleep(KILL_AFTER_S)
        daemon.kill()
    with Daemon(model, data) as daemon:
        client = daemon.client()
        client.complete(workloads.ids(f"warm-3-{number}", 64, vocab))
        return _hit(client, prompt, length)


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


def _book(bench: Bench, length: int, took: dict[str, list[float]], ready_again: list[float]) -> None:
    medians = {
        name: bench.value(f"{length} tokens, {name}", samples, "s", x=length, series=name)
        for name, samples in took.items()
    }
    case = f"{length} + {NEW_TOKENS} tokens: memory hit / bare engine"
    bench.compare(case, took["bare"], took["hit in memory"], ready_again, at_most=1.15)
    for memory, disk in (
        ("hit in memory", "hit on disk after a stop"),
        ("same prompt, hit in memory", "same prompt, hit on disk after a stop"),
        ("same prompt, hit in memory", "same prompt, hit on disk after kill -9"),
    ):
        allowed = medians[memory] + 1.5 * medians["bare reading"]
        bench.compare(f"{length}: {disk} / allowed", [allowed], took[disk], at_most=1.0,
                      note="allowed: hit in memory + 1.5 x bare reading, checking, decoding, copying")  # fmt: skip
        least = 30 if length >= 2048 and disk.startswith("same") else None
        bench.compare(f"{length}: cold / {disk}", took[disk], took["cold"], at_least=least)


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
