"""How long it takes to find the longest known prefix, by prompt length and number of entries, and what the index weighs."""

import gc
import time
import tracemalloc
from typing import Any

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.lab import Core
from mlxcel.core.decide.table import decide
from mlxcel.core.match import match_prefix
from mlxcel.core.tokens import from_ids

TITLE = "Lookup"
LENGTH, SHARED, OWN = 4096, 600, 64


def run(bench: Bench) -> None:
    """Measure the tree with long and with many entries, very long prompts, memory, and mlx-lm's trie."""
    shared = _long_entries(bench)
    many = _many_entries(bench)
    bench.ratio("lookup at many short entries / at long ones", many, shared, at_most=1.5)
    _very_long(bench)
    _memory(bench)
    _peer(bench, shared)


def _samples(work: Any, rounds: int, inner: int) -> list[float]:
    """Return seconds of one call, `inner` calls a sample."""
    samples = []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        for _ in range(inner):
            work()
        samples.append((time.perf_counter() - started) / inner)
    return samples


def _ask(bench: Bench, core: Core, name: str, tokens: bytes, expected: int) -> float:
    """Measure match and decision of one prompt; returns the median of the match."""
    found = match_prefix(core.state, core.namespace, tokens)
    assert found.length == expected, f"{name}: {found.length} tokens found, {expected} are known"
    inner = bench.size(200, 20)
    took = bench.value(
        f"match, {name}", _samples(lambda: match_prefix(core.state, core.namespace, tokens), 9, inner), "s"
    )
    arrival = core.arrival(tokens, "asks")
    bench.value(f"whole decision, {name}", _samples(lambda: decide(core.state, arrival), 9, inner), "s")
    return took


def _long_entries(bench: Bench) -> float:
    count = bench.size(1000, 20)
    core = Core()
    entries = workloads.forks(bench.seed, count, SHARED, LENGTH - SHARED)
    core.fill(entries)
    fresh = workloads.ids("fresh", LENGTH)
    block = core.namespace.block_size
    hit = from_ids(entries[count // 2] + fresh[:OWN])
    diverging = from_ids(entries[count // 2][:SHARED] + fresh[: LENGTH - SHARED])
    took = _ask(bench, core, f"{LENGTH} + {OWN} tokens, {count} entries of {LENGTH} that share {SHARED}", hit, LENGTH)
    common = SHARED // block * block
    _ask(bench, core, f"{LENGTH} tokens that leave {count} entries after {SHARED}", diverging, common)
    bench.compare("lookup in 150 µs", [150e-6], [took], at_most=1.0, note="measured / 150 µs")
    return took


def _many_entries(bench: Bench) -> float:
    count = bench.size(100_000, 500)
    core = Core()
    bench.say(f"filling {count} entries")
    started = time.perf_counter()
    core.fill(workloads.ids(f"short-{n}", OWN) for n in range(count))
    long = workloads.ids("long", LENGTH)
    core.serve(long)
    bench.value(
        f"one request into {count} entries, decided and applied twice", [(time.perf_counter() - started) / count]
    )
    gc.freeze()  # a server does the same once it is up: the collector does not walk what stays
    took = _ask(bench, core, f"{LENGTH} + {OWN} tokens, {count} short entries", from_ids(long + long[:OWN]), LENGTH)
    gc.unfreeze()
    return took


def _very_long(bench: Bench) -> None:
    length = bench.size(131_072, 8192)
    core = Core()
    prompt = workloads.ids("very-long", length)
    core.serve(prompt)
    took = _ask(bench, core, f"{length} tokens", from_ids(prompt), length)
    if not bench.quick:
        bench.compare("lookup of 128k tokens in 3 ms", [3e-3], [took], at_most=1.0, note="measured / 3 ms")


def _memory(bench: Bench) -> None:
    """Measure Python's allocations of the whole state per entry, tokens of the entries included."""
    count = bench.size(300, 20)
    unshared = _allocated([workloads.ids(f"memory-{n}", LENGTH) for n in range(count)])
    a_token = unshared / count / LENGTH
    bench.value("index memory a token, nothing shared", [a_token], "B")
    bench.compare("index memory, nothing shared", [1.0], [a_token], at_most=10, note="bytes a token; 4 are the token")
    shared = _allocated(workloads.forks(bench.seed, count, LENGTH - 96, 96))
    own_only = _allocated([workloads.ids(f"own-{n}", 96) for n in range(count)])
    a_shared = (shared - own_only) / count / (LENGTH - 96)
    bench.value(f"index memory a token, {LENGTH - 96} of {LENGTH} shared", [shared / count / LENGTH], "B")
    bench.compare(
        "index memory of what is shared", [1.0], [a_shared], at_most=0.5, note="bytes a shared token and entry"
    )


def _allocated(prompts: list[list[int]]) -> int:
    core = Core()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    core.fill(prompts)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def _peer(bench: Bench, ours: float) -> None:
    """Ask mlx-lm's trie the same question, with as few entries as it can bear."""
    from mlx_lm.models.cache import PromptTrie

    for count in (bench.size(10, 1), bench.size(100, 2)):
        entries = workloads.forks(bench.seed, count, SHARED, LENGTH - SHARED)
        trie = PromptTrie()
        for entry in entries:
            trie.add("model", entry, True)
        query = entries[0][:SHARED] + workloads.ids("fresh", LENGTH - SHARED)
        samples = _samples(lambda trie=trie, query=query: trie.search("model", query), 3, 1)
        theirs = bench.value(f"mlx-lm's trie, {LENGTH} tokens that leave {count} entries after {SHARED}", samples, "s")
        bench.ratio(f"mlx-lm's trie at {count} entries / ours", theirs, ours, at_least=None if count < 100 else 100)
