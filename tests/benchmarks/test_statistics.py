"""Medians, ratios, intervals and verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import statistics

SAMPLES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9)


def test_median_and_spread() -> None:
    """The median of an even count lies between; the spread is the range over the median."""
    assert statistics.median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert statistics.spread([1.0, 2.0, 3.0]) == 1.0
    with pytest.raises(ValueError, match="no samples"):
        statistics.median([])


def test_ratio_is_of_medians() -> None:
    """One outlier does not move the ratio, and nothing is divided by zero."""
    assert statistics.ratio([1.0, 1.0, 100.0], [2.0, 2.0, 2.0]) == 2.0
    with pytest.raises(ValueError, match="zero"):
        statistics.ratio([0.0], [1.0])


@given(SAMPLES, st.floats(0.5, 2.0))
def test_interval_holds_exact_ratio(samples: list[float], factor: float) -> None:
    """What is exactly `factor` times as large in each round has that ratio in every resample."""
    low, high = statistics.interval(samples, [factor * s for s in samples])
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


@given(SAMPLES, SAMPLES, st.integers(0, 5))
def test_interval_is_seeded_and_ordered(a: list[float], b: list[float], seed: int) -> None:
    """The same samples and seed give the same interval, low end first."""
    first, second = statistics.interval(a, b, seed), statistics.interval(a, b, seed)
    assert first == second
    assert first[0] <= first[1]


@pytest.mark.parametrize(
    ("low", "noise_high", "good"), [(0.9, 1.0, True), (1.04, 1.05, True), (1.06, 1.05, False), (0.99, 0.8, True)]
)
def test_as_good_reaches_into_noise(low: float, noise_high: float, good: bool) -> None:
    """A cost is real only when its whole interval lies above 1 and above what A against A gave."""
    assert statistics.as_good(low, noise_high) is good
