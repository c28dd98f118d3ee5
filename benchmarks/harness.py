"""What a module measures with: values, pairs run in turn with the same thing against itself beside them, targets.

A module of `benchmarks/` has `TITLE` and `run(bench)`. It reports through the bench, and never asserts a time:

    bench.value("put 4 MiB", [0.012, 0.011], "s")
    bench.pair("decode while spilling", a=alone, b=spilling, rounds=9, target="A/A")
    bench.ratio("restore against prefill", prefill_s, restore_s, at_least=100)
    bench.limit("memcpy of the same bytes takes 40 ms: nothing below that")

`a` and `b` are callables that do one run and return its length (seconds, or any cost); or None: they are then timed.
"""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import statistics
from benchmarks.result import Answer, Direction, Ratio, Value

Run = Callable[[], float | None]


class Skipped(Exception):
    """This can't be measured here; the message says why."""


class Bench:
    """One module's measuring: where its model and scratch folder are, and the answer it fills.

    `model`: directory of a model in mlx-lm's form, or None. `folder`: an empty scratch directory of the module's own.
    `quick`: few rounds and small sizes, to see that it works. `say`: reports progress in a few words.
    """

    def __init__(
        self,
        answer: Answer,
        folder: Path,
        model: Path | None = None,
        quick: bool = False,
        seed: int = 1,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.answer = answer
        self.folder = folder
        self.model = model
        self.quick = quick
        self.seed = seed
        self.say = say

    def size(self, full: int, quick: int) -> int:
        """Return `full`, or `quick` in a quick run."""
        return quick if self.quick else full

    def need_model(self) -> Path:
        """Return the model's directory. Raises Skipped."""
        if self.model is None:
            raise Skipped("there is no model: name one with --model, or run `mlxcel model fetch`")
        return self.model

    def value(
        self,
        case: str,
        samples: Sequence[float],
        unit: str = "s",
        better: Direction = "lower",
        note: str = "",
        x: float | None = None,
        series: str = "",
    ) -> float:
        """Book a measured thing; returns its median."""
        middle = statistics.median(samples)
        self.answer.values.append(Value(case, unit, middle, list(samples), better, note, x, series))
        self.say(f"{case}: {middle:.4g} {unit}")
        return middle

    def time(self, case: str, run: Run, rounds: int, warm: int = 1, note: str = "", per: int = 1) -> float:
        """Run `warm` times for nothing and `rounds` times for good; books seconds (divided by `per`), returns the median."""
        for _ in range(warm):
            once(run)
        return self.value(case, [once(run) / per for _ in range(rounds)], "s", note=note)

    def pair(
        self,
        case: str,
        a: Run,
        b: Run,
        rounds: int = 7,
        target: str = "",
        at_most: float | None = None,
        unit: str = "s",
        names: tuple[str, str] = ("A", "B"),
        warm: int = 1,
        note: str = "",
        a_again: Run | None = None,
    ) -> Ratio:
        """Run A, B and A again in turn, the order changing from round to round, and book B/A beside A/A.

        `a_again`: A once more where that is a process of its own, so that A/A shows what two processes differ by.
        `target` "A/A": B may cost no more than A against itself shows as noise. `at_most`: B/A may not be above.
        """
        for run in (a, b, *([a_again] if a_again else [])) * warm:
            once(run)
        first: list[float] = []
        other: list[float] = []
        again: list[float] = []
        arms = [(a, first), (b, other), (a_again or a, again)]
        for number in range(rounds):
            turn = number % 3
            for run, into in arms[turn:] + arms[:turn]:
                into.append(once(run))
            self.say(f"{case}: round {number + 1} of {rounds}")
        self.value(f"{case}: {names[0]}", first, unit)
        self.value(f"{case}: {names[0]} again", again, unit)
        self.value(f"{case}: {names[1]}", other, unit)
        return self.compare(case, first, other, again, target, at_most, note=note)

    def compare(
        self,
        case: str,
        a: Sequence[float],
        b: Sequence[float],
        again: Sequence[float] = (),
        target: str = "",
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> Ratio:
        """Book median(b) / median(a) with its interval; `again`: A measured a second time, for the noise."""
        found = Ratio(case, statistics.ratio(a, b), *statistics.interval(a, b, self.seed), note=note)
        if again:
            found.noise = statistics.ratio(a, again)
            found.noise_low, found.noise_high = statistics.interval(a, again, self.seed)
        if target == "A/A":
            found.target, found.holds = "A/A", statistics.as_good(found.low, found.noise_high)
        elif at_most is not None:
            found.target, found.holds = f"<= {at_most:g}", found.ratio <= at_most
        elif at_least is not None:
            found.target, found.holds = f">= {at_least:g}", found.ratio >= at_least
        self.answer.ratios.append(found)
        self.say(f"{case}: {found.ratio:.3g}")
        return found

    def ratio(
        self,
        case: str,
        over: float,
        under: float,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> Ratio:
        """Book `over / under` of two figures of this run."""
        return self.compare(case, [under], [over], at_most=at_most, at_least=at_least, note=note)

    def limit(self, words: str) -> None:
        """Say what stands in the way of doing better here."""
        self.answer.limits.append(words)


def once(run: Run) -> float:
    """Do one run; returns what it returned, or the seconds it took. The collector is kept out of the way."""
    gc.collect()
    started = time.perf_counter()
    cost = run()
    took = time.perf_counter() - started
    return took if cost is None else float(cost)
