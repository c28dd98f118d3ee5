"""Which positions of a prompt are captured, and under which name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.service.boundaries import LONG_PROMPT_TOKENS, plan_captures


@pytest.mark.parametrize(
    ("boundaries", "shared", "expected"),
    [
        ((50, 120, 150), (50,), {50: "system", 120: "boundary", 150: "interval"}),
        ((50, 150), (50,), {50: "system", 150: "boundary"}),
        ((50,), (50,), {50: "system"}),
        ((), (), {199: "boundary"}),
        ((20, 120), (20,), {120: "boundary"}),  # 20 is under the shortest prefix that is kept
        ((120, 500), (), {120: "boundary"}),  # 500 is outside
    ],
)
def test_positions_are_named_by_what_they_are(
    boundaries: tuple[int, ...], shared: tuple[int, ...], expected: dict[int, str]
) -> None:
    """System prompt for all sessions, end of the history, and what lies behind it."""
    assert plan_captures(200, boundaries, shared, 16, 32) == expected


def test_long_prompts_have_points_at_growing_distances() -> None:
    """A rewritten tail of 1, 4 or 16 thousand tokens finds a point in front of it; the points lie on the chunk grid."""
    points = plan_captures(40_000, (39_990,), (), 512, 32)
    assert points == {23_552: "interval", 35_840: "interval", 38_912: "interval", 39_990: "boundary"}


@given(
    st.integers(1, 70_000), st.lists(st.integers(-5, 70_000), max_size=6), st.integers(0, 6), st.sampled_from((16, 512))
)
def test_plans_stay_inside_and_small(total: int, boundaries: list[int], shared: int, chunk: int) -> None:
    """Every point is inside the prompt, in order, and what is not planned lies on the grid; few even for long prompts."""
    points = plan_captures(total, boundaries, boundaries[:shared], chunk, 1)
    assert list(points) == sorted(points)
    assert all(1 <= at < total for at in points)
    extra = [at for at in points if at not in boundaries and at != total - 1]
    assert all(at % chunk == 0 for at in extra)
    assert len(extra) <= (4 if total >= LONG_PROMPT_TOKENS else 0)
