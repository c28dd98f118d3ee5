"""Looking for a captured state, whole or in part, finds what comparing every state with the prompt finds."""

import random

import pytest

from mlxcel.core import events as ev
from tests.core.world import World

BLOCK = 4


def naive(stored: dict[tuple[int, ...], bool], prompt: list[int]) -> int:
    """Return the tokens to adopt: the longest state on the prompt, else the longest whole blocks of one to be cut."""
    limit = len(prompt) - 1
    exact = [len(ids) for ids in stored if len(ids) <= limit and list(ids) == prompt[: len(ids)]]
    if exact:
        return max(exact)
    best = 0
    for ids, cuttable in stored.items():
        common = 0
        while cuttable and common < min(len(ids), limit) and ids[common] == prompt[common]:
            common += 1
        best = max(best, common // BLOCK * BLOCK)
    return best


@pytest.mark.parametrize("bytes_per_token", [10, 0])
def test_states_and_parts_of_states_are_found(bytes_per_token: int) -> None:
    """For forks at any position, with and without growing layers, in one session each, after reloads too."""
    rng = random.Random(9 + bytes_per_token)
    cuts = exacts = 0
    for _ in range(60):
        room = {"capacity_bytes": 1_000_000, "max_entries": 1000, "snapshot_capacity_bytes": 1_000_000}
        world = World("snapshot", bytes_per_token, **room)
        stored: dict[tuple[int, ...], bool] = {}
        for step in range(12):
            before = list(rng.choice(list(stored))) if stored and rng.random() < 0.8 else []
            fresh = [rng.randrange(3) for _ in range(rng.randrange(1, 25))]
            ids = before[: rng.randrange(len(before) + 1)] + fresh
            (found, *_) = [e for e in world.adopt(ids, f"q{step}", session_key=f"s{step}") if _tells(e)]
            adopted = found.length if isinstance(found, ev.PrefixAdopted) else 0
            assert adopted == naive(stored, ids)
            cuttable = rng.random() < 0.6
            cuts += bool(adopted) and tuple(ids[:adopted]) not in stored
            exacts += tuple(ids[:adopted]) in stored
            world.donate(f"q{step}", state_nbytes=100, cuttable=cuttable)
            if len(ids) >= BLOCK:
                stored.setdefault(tuple(ids), cuttable)
            if rng.random() < 0.2:
                world.reload()
    assert min(cuts, exacts) > 20


def _tells(event: ev.Event) -> bool:
    return isinstance(event, ev.PrefixAdopted | ev.PrefixMissed)
