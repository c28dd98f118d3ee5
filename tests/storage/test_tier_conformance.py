"""One set of rules for every disk tier: the double, the real one and the fault-injecting wrapper."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from mlxcel.ports import DiskTier, PieceCorrupt, PieceMissing, TierUnavailable
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from tests.storage.doubles import FaultyDisk, MemoryDisk, key_of, plain, some_parts

SMALL = TierOptions(map_bytes=1 << 18, max_map_bytes=1 << 26, reserve_bytes=0)

KINDS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: MemoryDisk(),
    "lmdb": lambda path: LmdbTier.open(path / "kv", SMALL),
    "faulty": lambda path: FaultyDisk(),
}


@pytest.fixture(params=sorted(KINDS))
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskTier]:
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


def test_a_piece_is_there_after_the_group_and_not_before(tier: DiskTier) -> None:
    """What was written is read back exactly, listed with its stored bytes, and unknown keys are missing."""
    key = key_of(1)
    with pytest.raises(PieceMissing):
        tier.read(key)
    sizes = tier.write_group([(key, some_parts(1))], [])
    assert plain(tier.read(key)) == plain(some_parts(1))
    assert tier.inventory() == sizes
    assert sizes[key] > 0


def test_a_group_is_written_whole(tier: DiskTier) -> None:
    """Several puts and deletes of one group all hold."""
    tier.write_group([(key_of(n), some_parts(n)) for n in range(5)], [])
    tier.write_group([(key_of(9), some_parts(9))], [key_of(n) for n in range(3)])
    assert set(tier.inventory()) == {key_of(3), key_of(4), key_of(9)}
    for gone in range(3):
        with pytest.raises(PieceMissing):
            tier.read(key_of(gone))


def test_a_put_replaces_and_a_delete_of_nothing_is_fine(tier: DiskTier) -> None:
    """Writing a key again replaces it, deleting an absent key does nothing, and in one group the put comes last."""
    tier.write_group([(key_of(1), some_parts(1, 5_000))], [key_of(2)])
    tier.write_group([(key_of(1), some_parts(2, 10))], [key_of(1), key_of(1)])
    assert plain(tier.read(key_of(1))) == plain(some_parts(2, 10))
    assert set(tier.inventory()) == {key_of(1)}


def test_large_and_empty_pieces(tier: DiskTier) -> None:
    """A piece of several chunks and one without parts are both kept."""
    large = some_parts(3, 700_000)
    tier.write_group([(key_of(1), large), (key_of(2), [])], [])
    assert plain(tier.read(key_of(1))) == plain(large)
    assert tier.read(key_of(2)) == []


def test_an_empty_group_and_sync_are_harmless(tier: DiskTier) -> None:
    """A group of nothing and repeated syncs change nothing."""
    assert tier.write_group([], []) == {}
    tier.sync()
    tier.sync()
    assert tier.inventory() == {}


def test_a_closed_tier_is_unavailable(tier: DiskTier) -> None:
    """After `close` everything raises TierUnavailable; closing again does nothing."""
    tier.close()
    tier.close()
    for use in (tier.inventory, lambda: tier.read(key_of(1)), lambda: tier.write_group([], []), tier.sync):
        with pytest.raises(TierUnavailable):
            use()


def machine_for(
    make: Callable[[], Any], reopen: Callable[[Any], Any], revive: Callable[[Any], Any]
) -> type[RuleBasedStateMachine]:
    """Build a state machine that holds a tier against a dict. `reopen` closes it first, `revive` does not."""
    numbers = st.integers(0, 11)

    class TierMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.tier = make()
            self.model: dict[bytes, list[Any]] = {}

        @rule(
            puts=st.dictionaries(numbers, st.tuples(st.integers(0, 99), st.sampled_from([1, 100, 3_000, 150_000]))),
            deletes=st.lists(numbers, max_size=6),
        )
        def write(self, puts: dict[int, tuple[int, int]], deletes: list[int]) -> None:
            pieces = [(key_of(n), some_parts(seed, size)) for n, (seed, size) in puts.items()]
            sizes = self.tier.write_group(pieces, [key_of(n) for n in deletes])
            assert set(sizes) == {key for key, _ in pieces}
            for number in deletes:
                self.model.pop(key_of(number), None)
            self.model.update({key: plain(parts) for key, parts in pieces})

        @rule(number=numbers)
        def read(self, number: int) -> None:
            if key_of(number) in self.model:
                assert plain(self.tier.read(key_of(number))) == self.model[key_of(number)]
            else:
                with pytest.raises(PieceMissing):
                    self.tier.read(key_of(number))

        @rule(number=numbers)
        def full_disk(self, number: int) -> None:
            if isinstance(self.tier, FaultyDisk):
                self.tier.fail_writes(1)
                with pytest.raises(TierUnavailable):
                    self.tier.write_group([(key_of(number), some_parts(1))], list(self.model))

        @rule(number=numbers, position=st.integers(0, 1_000))
        def flip(self, number: int, position: int) -> None:
            if isinstance(self.tier, FaultyDisk) and key_of(number) in self.model:
                self.tier.flip(key_of(number), position)
                with pytest.raises(PieceCorrupt) as caught:
                    self.tier.read(key_of(number))
                assert caught.value.key == key_of(number)
                self.tier.write_group([], [key_of(number)])
                del self.model[key_of(number)]

        @rule()
        def start_again(self) -> None:
            self.tier = reopen(self.tier)

        @rule()
        def die_and_start_again(self) -> None:
            self.tier = revive(self.tier)
            assert {key: plain(self.tier.read(key)) for key in self.tier.inventory()} == self.model

        @invariant()
        def inventory_is_the_model(self) -> None:
            assert set(self.tier.inventory()) == set(self.model)

        def teardown(self) -> None:
            self.tier.close()

    return TierMachine


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_state_machine(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any sequence of groups, reads, faults and restarts leaves the tier equal to a dict."""

    def make() -> Any:
        return KINDS[kind](tmp_path_factory.mktemp("tier"))

    def reopen(tier: Any) -> Any:
        if kind != "lmdb":
            return tier
        tier.close()
        return LmdbTier.open(tier.directory, SMALL)

    def revive(tier: Any) -> Any:
        """What a killed process leaves: the files as they are, never closed and never synced."""
        if kind != "lmdb":
            return tier
        left = tmp_path_factory.mktemp("left") / "kv"
        shutil.copytree(tier.directory, left)
        tier.close()
        return LmdbTier.open(left, SMALL)

    run_state_machine_as_test(
        machine_for(make, reopen, revive),
        settings=settings(
            max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
