"""A result as Markdown with plots (SVG, drawn here: a report needs no plotting library)."""

from pathlib import Path

from benchmarks.plot import Line, line_plot
from benchmarks.result import Answer, Ratio, Result, Value


def write_report(result: Result, path: Path) -> None:
    """Write the Markdown file and its plots beside it."""
    for answer in result.answers:
        drawn = plot_of(answer)
        if drawn:
            (path.parent / plot_name(result, answer)).write_text(drawn)
    path.write_text(markdown(result) + "\n")


def plot_name(result: Result, answer: Answer) -> str:
    """Return the file name of an answer's plot."""
    return f"{result.header.started}-{answer.name}.svg"


def plot_of(answer: Answer) -> str:
    """Return the SVG of all values that stand on a line, or ""."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for value in answer.values:
        if value.x is not None:
            lines.setdefault(value.series, []).append((value.x, value.value))
    if not lines:
        return ""
    unit = next(v.unit for v in answer.values if v.x is not None)
    return line_plot(answer.title, unit, [Line(name, sorted(points)) for name, points in lines.items()])


def markdown(result: Result) -> str:
    """Return the report."""
    head = result.header
    revision = f"Revision {head.revision or 'unknown'}{' with changes' if head.dirty else ''}"
    lines = ["# Benchmarks", "", f"{revision}, {head.started}, "]
    lines[-1] += f"seed {head.seed}{', quick run' if head.quick else ''}. {head.machine}, {head.cpus} CPUs, "
    lines[-1] += f"{head.memory_bytes / 2**30:.0f} GiB. Load before: {head.load_before:.1f}. Python {head.python}, "
    lines[-1] += ", ".join(f"{name} {version}" for name, version in head.versions.items() if version)
    lines[-1] += f". Model: {head.model or 'none'}; BLAS bridge: {head.bridge}."
    lines += ["", *targets(result)]
    for answer in result.answers:
        lines += ["", *section(result, answer)]
    return "\n".join(lines)


def targets(result: Result) -> list[str]:
    """Return one table of everything that has a target."""
    rows = [(a.name, r) for a in result.answers for r in a.ratios if r.target]
    if not rows:
        return []
    lines = ["## Targets", "", "| question | what | measured | A/A | target | holds |", "|---|---|---|---|---|---|"]
    return lines + [f"| {name} " + ratio_row(ratio) for name, ratio in rows]


def ratio_row(ratio: Ratio) -> str:
    """Return a table line without its first cell."""
    sure = f" ({ratio.low:.3g} - {ratio.high:.3g})" if ratio.high > ratio.low else ""
    noise = "" if ratio.noise is None else f"{ratio.noise:.3g} ({ratio.noise_low:.3g} - {ratio.noise_high:.3g})"
    holds = {True: "yes", False: "**no**", None: ""}[ratio.holds]
    return f"| {ratio.case} | {ratio.ratio:.4g}{sure} | {noise} | {ratio.target} | {holds} |"


def section(result: Result, answer: Answer) -> list[str]:
    """Return one question's part of the report."""
    lines = [f"## {answer.title}", "", f"`{answer.name}`, {answer.seconds:.0f} s."]
    if answer.skipped:
        return [*lines, "", f"Not measured: {answer.skipped}"]
    if answer.ratios:
        lines += ["", "| ratio | measured | A/A | target | holds |", "|---|---|---|---|---|"]
        lines += [ratio_row(ratio) for ratio in answer.ratios]
    if answer.values:
        lines += ["", "| case | median | smallest - largest | samples |", "|---|---|---|---|"]
        lines += [value_row(value) for value in answer.values]
    if plot_of(answer):
        lines += ["", f"![{answer.title}]({plot_name(result, answer)})"]
    notes = [f"{item.case}: {item.note}" for item in [*answer.ratios, *answer.values] if item.note]
    return lines + [f"\n* {words}" for words in [*notes, *answer.limits]]


def value_row(value: Value) -> str:
    """Return a table line of one value, in a unit that reads well."""
    low, high = (readable(x, value.unit) for x in (min(value.samples), max(value.samples)))
    return f"| {value.case} | {readable(value.value, value.unit)} | {low} - {high} | {len(value.samples)} |"


def readable(amount: float, unit: str) -> str:
    """Return an amount with three or four digits and a prefix that suits it: seconds and bytes get one."""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(amount) >= factor or name == "µs":
                return f"{amount / factor:.3g} {name}"
    if unit == "B":
        for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(amount) >= factor:
                return f"{amount / factor:.3g} {name}"
    return f"{amount:.4g} {unit}"
