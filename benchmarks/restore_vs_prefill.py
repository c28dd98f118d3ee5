"""How long a prefix takes to come back from disk or from memory, against computing it."""

import queue
import time
from collections.abc import Callable
from typing import Any

from benchmarks import statistics, workloads
from benchmarks.harness import Bench
from benchmarks.lab import load
from benchmarks.pages import touch
from mlxcel.core.tokens import cut, from_ids
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.restore import RestorePool

TITLE = "Restoring N tokens, against prefilling them"
PIECE, CHUNK = 256, 512
ROOM = 256
LENGTHS = {512: 5, 2048: 3, 8192: 1}
QUICK = {512: 2}


def run(bench: Bench) -> None:
    """For each length in turn: prefill, read back from disk, adopt from memory, in changing order within one run."""
    engine = load(bench.need_model(), bench.folder)
    tier = LmdbTier.open(bench.folder / "kv", TierOptions(reserve_bytes=0))
    pool = RestorePool(tier)
    for tokens, rounds in (QUICK if bench.quick else LENGTHS).items():
        measure(bench, Subject(engine, tier, pool, tokens), rounds)
    bench.limit(
        "The file was written just before, so its pages are in the system's cache: a cold device adds its own time."
    )
    pool.close()
    tier.close()


class Subject:
    """One prefix: as tokens, as pieces in memory, as pieces on disk."""

    def __init__(self, engine: Any, tier: LmdbTier, pool: RestorePool, tokens: int) -> None:
        self.engine, self.pool, self.count = engine, pool, tokens
        self.tokens = from_ids(workloads.ids(f"restore-{tokens}", tokens, min(engine.facts.vocab_size, 40_000)))
        cache = self._prefilled()
        self.pieces = [engine.copy_rows(cache, at, at + PIECE) for at in range(0, tokens, PIECE)]
        self.keys = [tokens.to_bytes(16, "big") + n.to_bytes(16, "big") for n in range(len(self.pieces))]
        for key, piece in zip(self.keys, self.pieces, strict=True):
            stored = tier.write_group([(key, engine.piece_parts(piece))], [])
            self.stored_bytes = getattr(self, "stored_bytes", 0) + stored[key]
        self.raw_bytes = sum(engine.piece_bytes(piece) for piece in self.pieces)

    def _prefilled(self) -> Any:
        cache = self.engine.new_cache()
        for at in range(0, self.count, CHUNK):
            self.engine.prefill(cache, cut(self.tokens, at, at + CHUNK))
        return cache

    def prefill(self) -> float:
        """Compute all of it; returns seconds."""
        return timed(self._prefilled)

    def restore(self) -> float:
        """Read, verify, decompress, hand over and assemble; returns seconds."""
        return timed(self._restored)

    def adopt(self) -> float:
        """Assemble a live cache from pieces in memory; returns seconds."""
        return timed(lambda: self._assembled(self.pieces))

    def _restored(self) -> Any:
        steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.pool.start(self.keys, lambda *arrived: steps.put(arrived), steps.put)
        pieces: list[Any] = [None] * len(self.keys)
        while isinstance(step := steps.get(), tuple):
            index, parts, taken = step
            pieces[index] = self.engine.piece_from_parts(parts)
            taken()
        if step is not None:
            raise step
        return self._assembled(pieces)

    def _assembled(self, pieces: list[Any]) -> Any:
        return self.engine.assemble([(piece, 0, PIECE) for piece in pieces], None, self.count + ROOM)


def measure(bench: Bench, subject: Subject, rounds: int) -> None:
    """Run the three in turn and book them."""
    arms: list[tuple[Callable[[], float], list[float]]] = [
        (subject.prefill, []),
        (subject.restore, []),
        (subject.adopt, []),
    ]
    subject.restore()
    subject.adopt()
    for number in range(rounds):
        turn = number % 3
        for work, into in arms[turn:] + arms[:turn]:
            into.append(work())
    prefill, restore, adopt = (into for _, into in arms)
    n = subject.count
    bench.value(f"prefill {n} tokens", prefill, "s", x=n, series="prefill")
    bench.value(f"restore {n} tokens from disk", restore, "s", x=n, series="disk")
    bench.value(f"adopt {n} tokens from memory", adopt, "s", x=n, series="memory")
    bench.value(f"raw / stored bytes of {n} tokens", [subject.raw_bytes / subject.stored_bytes], "", better="higher")
    bench.value(f"restoring {n}, raw", [subject.raw_bytes / statistics.median(restore) / 1e9], "GB/s", better="higher")
    bench.compare(f"prefill / restore, {n} tokens", restore, prefill)
    bench.compare(f"prefill / adopt, {n} tokens", adopt, prefill)


def timed(work: Callable[[], object]) -> float:
    """Return how long `work` takes, its result's release not included."""
    touch()
    started = time.perf_counter()
    kept = work()
    taken = time.perf_counter() - started
    del kept
    return taken
