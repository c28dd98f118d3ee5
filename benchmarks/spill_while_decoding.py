"""What writing to disk behind a running answer costs each of its tokens."""

import time
from typing import Any

from benchmarks import statistics, workloads
from benchmarks.harness import Bench
from benchmarks.lab import load, pieces_of
from benchmarks.pages import touch
from mlxcel.core.tokens import from_ids
from mlxcel.ports import SamplingParams
from storage.event_log.recovery import open_log
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.spill import SpillThread

TITLE = "Decoding while 1 GiB is written to disk"
CONTEXT = 256
MOST = 1.10
TOUCH_BYTES = 256 << 20  # a stretch needs no more


def run(bench: Bench) -> None:
    """Decode in stretches: undisturbed, while writing, undisturbed again, in changing order, until 1 GiB is written."""
    engine = load(bench.need_model(), bench.folder)
    writer = Writing(engine, bench)
    steps = bench.size(40, 12)
    goal = bench.size(1 << 30, 48 << 20)
    decode = Decoding(engine)
    decode.steps(8)
    times: dict[str, list[list[float]]] = {"alone": [], "writing": [], "alone again": []}
    kinds = list(times)
    number = 0
    while writer.written() < goal or number < 3:
        turn = number % 3
        for kind in kinds[turn:] + kinds[:turn]:
            if kind == "writing":
                taken = decode.steps(steps, writer.feed)
                writer.drain()
            else:
                taken = decode.steps(steps)
            times[kind].append(taken)
        number += 1
        bench.say(f"round {number}: {writer.written() >> 20} MiB written")
    decode.end()
    report(bench, times)
    bench.value("written, raw", [writer.written()], "B", better="higher")
    writer.close()


def report(bench: Bench, times: dict[str, list[list[float]]]) -> None:
    """Book the median and the 90th percentile of a step per stretch, and compare them."""
    for name, share, limit in (("median", 0.5, None), ("p90", 0.9, MOST)):
        found = {kind: [quantile(stretch, share) for stretch in stretches] for kind, stretches in times.items()}
        for kind, values in found.items():
            bench.value(f"step, {name}, {kind}", values, "s")
        bench.compare(f"step, {name}: writing / alone", found["alone"], found["writing"], found["alone again"])
        if limit is not None:
            undisturbed = statistics.median(found["alone again"])
            ratio = statistics.median(found["writing"]) / undisturbed
            bench.ratio(f"step, {name}: writing / alone again", ratio, 1.0, at_most=limit)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of all lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Decoding:
    """One answer that goes on."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.row = -1
        self.left = 0

    def steps(self, count: int, beside: Any = None) -> list[float]:
        """Decode `count` tokens; returns seconds a step. `beside` is called after each, as the service's loop would."""
        if self.left < count:
            self._begin(max(count, 200))
        touch(TOUCH_BYTES)
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            self.engine.decode_step()
            taken.append(time.perf_counter() - started)
            if beside is not None:
                beside()
        self.left -= count
        return taken

    def _begin(self, room: int) -> None:
        self.end()
        prompt = from_ids(workloads.ids("decode", CONTEXT))
        cache = self.engine.new_cache()
        self.engine.prefill(cache, prompt[:-4])
        last = int.from_bytes(prompt[-4:], "little")
        never_ends = dict.fromkeys(self.engine.facts.eos_token_ids, -1000000000.0)
        params = SamplingParams(logit_bias=never_ends)
        self.row = self.engine.start_row(cache, last, prompt[:-4], params, room + 1)
        self.left = room

    def end(self) -> None:
        """Give the answer up."""
        if self.row >= 0:
            self.engine.drop_row(self.row)
            self.row = -1


class Writing:
    """The spill thread over a real log and tier, fed with real pieces under new keys, paced as the service paces it."""

    def __init__(self, engine: Any, bench: Bench) -> None:
        self.opened = open_log(bench.folder / "log")
        self.tier = LmdbTier.open(bench.folder / "kv", TierOptions(reserve_bytes=0))
        self.spill = SpillThread(self.tier, self.opened.writer, lambda outcomes: None)
        self.parts = engine.piece_parts(pieces_of(engine, 256)[0])
        self.nbytes = sum(len(part.data) for part in self.parts)
        self.number = 0
        self.seq = 0

    def feed(self) -> None:
        """Keep two pieces waiting; a step of the loop submits at most one."""
        self.spill.set_paced(True)
        if self.spill.queued_bytes() < 2 * self.nbytes:
            self.seq = self.opened.writer.append(b"piece")
            self.number += 1
            self.spill.submit(self.seq, self.number.to_bytes(32, "big"), self.parts, self.nbytes)

    def drain(self) -> None:
        """Write what waits, outside the measurement."""
        self.spill.set_paced(False)
        self.spill.flush(60.0)
        if self.number % 40 > 36:  # the folder need not hold it all
            self.spill.delete(self.seq, [n.to_bytes(32, "big") for n in range(max(1, self.number - 60), self.number)])

    def written(self) -> int:
        """Return raw bytes that were written."""
        return self.spill.counts()["raw_bytes"]

    def close(self) -> None:
        """Stop."""
        self.spill.close(60.0)
        self.opened.writer.close()
        self.tier.close()
