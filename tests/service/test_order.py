"""The order of waiting requests as a pure function."""

import random

from hypothesis import given
from hypothesis import strategies as st

from mlxcel.service.order import Waiting, next_waiting, out_of_time

LIMIT = 10.0


def test_the_longest_cached_prefix_goes_first() -> None:
    """Among those that fit the longest cached prefix wins; equals keep their order of arrival."""
    waiting = [Waiting(name, 1.0) for name in "abcd"]
    cached = {"a": 16, "b": 64, "c": 64, "d": 999}
    assert next_waiting(waiting, cached.__getitem__, lambda name: name != "d", LIMIT) == "b"
    assert next_waiting(waiting, lambda name: 0, lambda name: True, LIMIT) == "a"


def test_age_goes_before_cache_and_is_not_overtaken() -> None:
    """Whoever waited too long goes next, and while it does not fit nobody else does."""
    waiting = [Waiting("old", LIMIT), Waiting("new", 0.0)]
    cached = {"old": 0, "new": 500}
    assert next_waiting(waiting, cached.__getitem__, lambda name: True, LIMIT) == "old"
    assert next_waiting(waiting, cached.__getitem__, lambda name: name == "new", LIMIT) is None


def test_without_a_choice_nothing_is_looked_up() -> None:
    """One that fits goes without a lookup, and none waits for nothing."""

    def refuse(name: str) -> int:
        raise AssertionError(name)

    assert next_waiting([Waiting("a", 0.0)], refuse, lambda name: True, LIMIT) == "a"
    assert next_waiting([], refuse, lambda name: True, LIMIT) is None


@given(seed=st.integers(0, 10_000))
def test_none_starves(seed: int) -> None:
    """With well-cached newcomers at every step, each request is admitted within the limit plus those that aged before it."""
    rng = random.Random(seed)
    queue: list[tuple[str, int]] = [("poor", 0)]
    cached = {"poor": 0}
    for now in range(1, 60):
        for n in range(rng.randrange(1, 3)):
            queue.append((f"{now}-{n}", now))
            cached[f"{now}-{n}"] = rng.randrange(1, 1000)
        waiting = [Waiting(name, float(now - came)) for name, came in queue]
        chosen = next_waiting(waiting, cached.__getitem__, lambda name: True, LIMIT)
        if chosen == "poor":
            assert now <= LIMIT
            return
        queue = [row for row in queue if row[0] != chosen]
    raise AssertionError("it starved")


def test_time_limits() -> None:
    """Each limit counts its own span, and 0 is no limit."""
    assert out_of_time(5, 0, 5, 0)
    assert out_of_time(0, 7, 5, 7)
    assert not out_of_time(4.9, 6.9, 5, 7)
    assert not out_of_time(1e9, 1e9, 0, 0)
