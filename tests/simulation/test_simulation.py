"""Many short lives of the whole service. A failure prints the seed; `World(seed)` repeats it exactly."""

import pytest

from tests.simulation.world import World

STEPS = 250


def live(seed: int, steps: int = STEPS) -> World:
    """Run one seed, checking after each step."""
    world = World(seed)
    for _ in range(steps):
        world.step()
        world.check()
    world.settle_down()
    world.check()
    world.verify_history()
    return world


@pytest.mark.parametrize("seed", range(60))
def test_a_life_with_faults_gives_right_answers_and_a_true_log(seed: int) -> None:
    """Answers are right, tiers, state and log agree after every step, and the history verifies."""
    world = live(seed)
    assert world.requests_done > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2500, 250))
def test_thousands_of_lives(first: int) -> None:
    """The same for thousands of seeds."""
    for seed in range(first, first + 250):
        live(seed)
