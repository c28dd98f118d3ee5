"""The harness: order of runs, what is booked, results on disk, comparison and report."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import harness, registry, report
from benchmarks.__main__ import options_of
from benchmarks.compare import compare, verdict
from benchmarks.plot import Line, line_plot
from benchmarks.result import Answer, Header, Result, Value, load, new_header, save


def bench(tmp_path: Path) -> harness.Bench:
    """Return a bench without a model."""
    return harness.Bench(Answer("toy", "A toy"), tmp_path)


def header(**changed: object) -> Header:
    """Return a header of this machine with some fields changed."""
    made = new_header(1, True, "none", "2026-01-01T00-00-00Z")
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def test_pair_runs_in_turn_with_a_twice(tmp_path: Path) -> None:
    """Each round runs A, B and A once, every arm comes first in turn, and the costs go where they belong."""
    order: list[str] = []

    def run(name: str, cost: float) -> float:
        order.append(name)
        return cost

    toy = bench(tmp_path)
    found = toy.pair("toy", a=lambda: run("a", 2.0), b=lambda: run("b", 3.0), rounds=3, at_most=1.6)
    assert order == ["a", "b", *"aba", *"baa", *"aab"]
    assert (found.ratio, found.noise, found.holds, found.target) == (1.5, 1.0, True, "<= 1.6")
    assert [v.case for v in toy.answer.values] == ["toy: A", "toy: A again", "toy: B"]
    assert [v.value for v in toy.answer.values] == [2.0, 2.0, 3.0]


def test_targets_are_judged(tmp_path: Path) -> None:
    """At most, at least and A/A each hold or not; no target is no verdict."""
    toy = bench(tmp_path)
    assert toy.ratio("x", 30.0, 1.0, at_least=20).holds is True
    assert toy.ratio("x", 30.0, 1.0, at_most=20).holds is False
    assert toy.ratio("x", 30.0, 1.0).holds is None
    assert toy.compare("x", [1.0, 1.0], [2.0, 2.0], [1.0, 1.1], target="A/A").holds is False
    assert toy.compare("x", [1.0, 1.2], [1.1, 1.1], [1.2, 1.0], target="A/A").holds is True


def test_once_takes_a_cost_or_the_clock() -> None:
    """A run that returns a cost is believed; one that returns nothing is timed."""
    assert harness.once(lambda: 7.0) == 7.0
    assert harness.once(lambda: None) > 0.0


def test_missing_model_skips(tmp_path: Path) -> None:
    """A question that needs a model is skipped with a reason that says how to get one."""
    with pytest.raises(harness.Skipped, match="model fetch"):
        bench(tmp_path).need_model()


def test_result_survives_its_file(tmp_path: Path) -> None:
    """What is saved is read back equal."""
    toy = bench(tmp_path)
    toy.value("size", [1.0, 3.0, 2.0], "B", x=4.0, series="s")
    toy.ratio("half", 1.0, 2.0, at_most=1.0)
    toy.limit("the disk")
    result = Result(header(), [toy.answer])
    save(result, tmp_path / "r" / "result.json")
    assert load(tmp_path / "r" / "result.json") == result


def value(samples: list[float], better: str = "lower") -> Value:
    """Return a value with the median of three samples."""
    return Value("case", "s", sorted(samples)[len(samples) // 2], samples, better)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "better", "said"),
    [
        ([1.0, 1.1, 0.9], [1.02, 1.1, 0.9], "lower", ""),
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "lower", "worse"),
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "higher", "better"),
        ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], "lower", "better"),
        ([1.0, 3.0, 0.5], [1.5, 0.6, 2.9], "lower", ""),
        ([1.0], [2.0], "lower", "?"),
    ],
)
def test_compare_tells_change_from_noise(old: list[float], new: list[float], better: str, said: str) -> None:
    """Only a change beyond the scatter of both counts, in the direction that is better for that value."""
    assert verdict(value(old, better), value(new, better)) == said


def test_compare_lists_common_cases_and_differences() -> None:
    """Cases of one side only are left out; another machine or another package version is said first."""
    old = Result(header(machine="another", versions={"mlx": "1"}), [Answer("q", "Q", [value([1.0, 1.0, 1.0])])])
    extra = Value("only new", "s", 1.0, [1.0])
    new = Result(header(versions={"mlx": "2"}), [Answer("q", "Q", [value([3.0, 3.0, 3.0]), extra])])
    text = compare(old, new)
    assert "machine differs: another" in text
    assert "mlx: 1 -> 2" in text
    assert "| q | case | 1 s | 3 s | 3.000 | worse |" in text
    assert "only new" not in text


def test_report_shows_targets_plots_and_skips(tmp_path: Path) -> None:
    """A report has the table of targets, a plot beside it for what stands on a line, and why something is missing."""
    toy = bench(tmp_path)
    for x in (1.0, 10.0, 100.0):
        toy.value(f"at {x}", [x / 1000], "s", x=x, series="line <one>")
    toy.ratio("good", 1.0, 1.0, at_most=2.0)
    result = Result(header(), [toy.answer, Answer("gone", "Gone", skipped="no model")])
    report.write_report(result, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert "| toy | good | 1 |" in text
    assert "Not measured: no model" in text
    svg = tmp_path / report.plot_name(result, toy.answer)
    assert svg.name in text
    names = [e.text for e in ET.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text")]
    assert "line <one>" in names


def test_plot_stands_inside_its_frame() -> None:
    """Every point of a plot lies inside the picture, on straight and on logarithmic axes."""
    for points in ([(0.0, 0.0), (1.0, 2.0)], [(1.0, 1e-6), (1e5, 3.0)], [(5.0, 5.0)]):
        circles = ET.fromstring(line_plot("t", "s", [Line("l", points)])).iter("{http://www.w3.org/2000/svg}circle")
        for circle in circles:
            assert 0 <= float(circle.get("cx", "-1")) <= 720
            assert 0 <= float(circle.get("cy", "-1")) <= 360


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (2e-6, "s", "2 µs"),
        (3.0, "s", "3 s"),
        (2.5e6, "B", "2.5 MB"),
        (7.0, "tok/s", "7 tok/s"),
    ],
)
def test_amounts_read_well(amount: float, unit: str, text: str) -> None:
    """Seconds and bytes get the prefix that suits them."""
    assert report.readable(amount, unit) == text


@pytest.mark.parametrize("name", registry.known())
def test_each_question_has_title_and_run(name: str) -> None:
    """Each module that the registry knows can be imported and has what the runner calls."""
    module = registry.module(name)
    assert module.TITLE
    assert callable(module.run)


def test_unknown_question_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is no question ends with those that are."""
    with pytest.raises(SystemExit):
        options_of(["nonsense"])
    assert "lookup" in capsys.readouterr().err
