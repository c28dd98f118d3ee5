"""Two results side by side: what became faster or slower by more than the noise of both. Pure."""

from benchmarks.result import Result, Value
from benchmarks.statistics import interval, median

SMALL = 0.05  # under a twentieth nothing is called a change, however sure


def compare(old: Result, new: Result) -> str:
    """Return a Markdown table of every value that both hold, changes that are more than noise marked."""
    lines = [f"{old.header.revision} ({old.header.started}) -> {new.header.revision} ({new.header.started})", ""]
    lines += [f"**{words}**" for words in differences(old, new)]
    lines += ["", "| question | case | old | new | new / old | verdict |", "|---|---|---|---|---|---|"]
    for answer in new.answers:
        before = old.answer(answer.name)
        known = {value.case: value for value in before.values} if before else {}
        for value in answer.values:
            if value.case in known:
                lines.append(f"| {answer.name} " + row(known[value.case], value))
    lines += ["", "| question | ratio | old | new | target | holds |", "|---|---|---|---|---|---|"]
    for answer in new.answers:
        before = old.answer(answer.name)
        ratios = {ratio.case: ratio for ratio in before.ratios} if before else {}
        for ratio in answer.ratios:
            if ratio.case in ratios:
                was = ratios[ratio.case]
                holds = {True: "yes", False: "no", None: ""}[ratio.holds]
                lines.append(
                    f"| {answer.name} | {ratio.case} | {was.ratio:.3g} | {ratio.ratio:.3g} | {ratio.target} | {holds} |"
                )
    return "\n".join(lines)


def row(old: Value, new: Value) -> str:
    """Return one line of the table, without its first cell."""
    change = new.value / old.value if old.value else float("nan")
    return (
        f"| {new.case} | {old.value:.4g} {old.unit} | {new.value:.4g} {new.unit} | {change:.3f} | {verdict(old, new)} |"
    )


def verdict(old: Value, new: Value) -> str:
    """Return "better", "worse", "" (no change beyond noise) or "?" (too few samples to tell)."""
    if not median(old.samples):
        return "" if old.value == new.value else "?"
    change = new.value / old.value
    if abs(change - 1) < SMALL:
        return ""
    if min(len(old.samples), len(new.samples)) < 3:
        return "?"
    low, high = independent(old.samples, new.samples)
    if low <= 1 <= high:
        return ""
    return "better" if (change < 1) == (new.better == "lower") else "worse"


def independent(old: list[float], new: list[float]) -> tuple[float, float]:
    """Return the interval of new / old for samples of two runs: shuffled against each other, since rounds don't match."""
    lows, highs = zip(*(interval(old, new[turn:] + new[:turn], turn) for turn in range(len(new))), strict=True)
    return min(lows), max(highs)


def differences(old: Result, new: Result) -> list[str]:
    """Name what forbids reading the two as one machine's story."""
    words = []
    for name in ("machine", "cpus", "model", "seed", "quick", "bridge"):
        was, now = getattr(old.header, name), getattr(new.header, name)
        if was != now:
            words.append(f"{name} differs: {was} -> {now}")
    changed = [k for k, v in new.header.versions.items() if old.header.versions.get(k) != v]
    words += [f"{k}: {old.header.versions.get(k)} -> {new.header.versions[k]}" for k in changed]
    return words
