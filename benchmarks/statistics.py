"""Medians, ratios of things measured in turn, and how sure they are. Pure and seeded."""

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 1000


def median(samples: Sequence[float]) -> float:
    """Return the median. Raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    return float(statistics.median(samples))


def spread(samples: Sequence[float]) -> float:
    """Return (largest - smallest) / median: 0 when all are equal."""
    middle = median(samples)
    return (max(samples) - min(samples)) / middle if middle else 0.0


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return median(b) / median(a)."""
    below = median(a)
    if below == 0:
        raise ValueError("a ratio to zero")
    return median(b) / below


def interval(a: Sequence[float], b: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the middle 95 % of median(b) / median(a) over rounds drawn again with replacement.

    Rounds are drawn whole, so a slow minute of the machine that hits both sides of a round cancels out.
    """
    rounds = min(len(a), len(b))
    if rounds < 2:
        only = ratio(a, b)
        return only, only
    rng = random.Random(seed)
    found = []
    for _ in range(RESAMPLES):
        chosen = [rng.randrange(rounds) for _ in range(rounds)]
        found.append(ratio([a[i] for i in chosen], [b[i] for i in chosen]))
    found.sort()
    return found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]


def as_good(low: float, noise_high: float) -> bool:
    """Return whether a cost can't be told from noise: its interval reaches down into what A against A gave."""
    return low <= max(1.0, noise_high)
