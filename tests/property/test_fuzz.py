"""Random histories: purity, invariants, checkpoints and replay hold whatever comes in whatever order."""

import pytest

from tests.property.driver import Driver


@pytest.mark.parametrize("seed", range(100))
def test_random_history(seed: int) -> None:
    """150 random commands: deciding changes nothing, no invariant breaks, the log decides the same again."""
    Driver(seed).run(150)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_many_random_histories(first: int) -> None:
    """The same for 3,000 more seeds."""
    for seed in range(first, first + 100):
        Driver(seed).run(150)
