"""Token sequences as bytes."""

import random

import pytest

from mlxcel.core.match import common_blocks
from mlxcel.core.tokens import common_tokens, count, cut, from_ids, to_ids


def test_ids_are_int32_little_endian() -> None:
    """Four bytes a token, least significant first."""
    assert from_ids([1, 258, 2**31 - 1]) == bytes.fromhex("01000000020100 00ffffff7f".replace(" ", ""))
    assert to_ids(from_ids([0, 7, 2**31 - 1])) == [0, 7, 2**31 - 1]


@pytest.mark.parametrize("token", [2**31, 2**40])
def test_ids_out_of_range_are_refused(token: int) -> None:
    """A token id that is no int32 raises OverflowError rather than wrapping."""
    with pytest.raises(OverflowError):
        from_ids([token])


def test_count_and_cut_speak_of_tokens() -> None:
    """Positions are tokens, not bytes; beyond the end nothing is given."""
    tokens = from_ids(range(10))
    assert count(tokens) == 10
    assert to_ids(cut(tokens, 3, 5)) == [3, 4]
    assert to_ids(cut(tokens, 8, 99)) == [8, 9]


def test_common_prefix_equals_counting_one_by_one() -> None:
    """Halving finds the same length as a plain loop, in tokens and in whole blocks."""
    rng = random.Random(1)
    for _ in range(500):
        shared = [rng.randrange(3) for _ in range(rng.randrange(70))]
        left = shared + [rng.randrange(2) for _ in range(rng.randrange(9))]
        right = shared + [rng.randrange(2) for _ in range(rng.randrange(9))]
        plain = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
        plain = min(len(left), len(right)) if plain is None else plain
        assert common_tokens(from_ids(left), from_ids(right)) == plain
        assert common_blocks(from_ids(left), from_ids(right), 16) == plain // 4
