"""A lookup by tokens and the guide's lookup by chain hashes find the same length."""

import random

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import EMPTY_MEDIA, NamespaceKey, block_chain
from mlxcel.core.match import match_prefix
from mlxcel.core.stats import block_stats
from mlxcel.core.tokens import from_ids
from tests.core.world import World


def by_hashes(chain: list[bytes], stored: list[list[bytes]], block: int, length: int) -> int:
    """Return how many whole blocks of the request agree with the stored chain that agrees longest, in tokens."""
    best = 0
    for other in stored:
        agree = 0
        while agree < length // block and agree < len(other) and chain[agree] == other[agree]:
            agree += 1
        best = max(best, agree * block)
    return best


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_tokens_and_chain_hashes_agree(algorithm: str) -> None:
    """For forks at any position, the tree walk and comparing block chains give the same number of tokens; the statistics count
    the blocks of these chains."""
    rng = random.Random(7)
    for _ in range(60):
        world = World(capacity_bytes=1_000_000, max_entries=1000)
        chains: list[list[bytes]] = []
        sequences: list[list[int]] = []
        entries: dict[bytes, list[bytes]] = {}
        for _ in range(8):
            before = rng.choice(sequences) if sequences and rng.random() < 0.7 else []
            ids = before[: rng.randrange(len(before) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
            sequences.append(ids)
            tokens = from_ids(ids)
            chain = block_chain(tokens, 4, EMPTY_MEDIA, algorithm)
            found = match_prefix(world.state, world.state.namespaces[world.namespace], tokens)
            assert found.length == by_hashes(chain, chains, 4, len(ids))
            world.store(ids)
            if len(ids) >= 4:
                chains.append(block_chain(tokens[: len(ids) // 4 * 16], 4, EMPTY_MEDIA, algorithm))
                entries[tokens] = chains[-1]
        assert block_stats(world.state, algorithm) == {
            "total_blocks_stored": sum(len(chain) for chain in entries.values()),
            "unique_block_hashes": len({link for chain in entries.values() for link in chain}),
            "apc_active_entries": len(entries),
        }


def test_strict_buckets_follow_the_guide() -> None:
    """Only entries of the same template count; the session's own wins ties, another's only when strictly longer."""
    rng = random.Random(8)
    hits = 0
    for _ in range(40):
        world = World(strict_template_bucket=True, capacity_bytes=1_000_000, max_entries=1000)
        stored: list[tuple[str, str, list[int], int]] = []
        for _ in range(12):
            before = rng.choice(stored)[2] if stored and rng.random() < 0.8 else []
            ids = before[: rng.randrange(len(before) + 1)] + [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
            template, session = rng.choice("AB"), rng.choice("xy")
            lengths = {True: 0, False: 0}
            for t, s, other, _ in stored:
                if t == template:
                    same = next((n for n, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), None)
                    common = min(len(ids), len(other)) if same is None else same
                    lengths[s == session] = max(lengths[s == session], common // 4 * 4)
            expected = min(max(lengths.values()), (len(ids) - 1) // 4 * 4)
            events = world.adopt(ids, template_sig=template, session_key=session)
            length = getattr(events[0], "length", 0)
            assert length == (expected if expected >= 4 else 0)
            if length:
                hits += 1
                assert isinstance(events[0], ev.PrefixAdopted)
                assert events[0].same_session == (lengths[True] >= lengths[False])
            world.donate(f"r{world.asked}")
            if len(ids) >= 4:
                stored.append((template, session, ids[: len(ids) // 4 * 4], world.asked))
    assert hits > 100


def test_strict_snapshots_belong_to_session_and_template() -> None:
    """By the guide a captured state serves only its own session and template; by default equal tokens are enough."""
    for strict, lengths in ((True, [0, 0, 20]), (False, [20, 20, 20])):
        world = World("snapshot", strict_template_bucket=strict)
        world.store(range(20), session="me", template_sig="A", state_nbytes=100)
        asked = [("me", "B"), ("you", "A"), ("me", "A")]
        got = [world.adopt(range(30), session_key=s, template_sig=t)[-1] for s, t in asked]
        assert [getattr(event, "length", 0) for event in got] == lengths


def test_template_does_not_matter_by_default() -> None:
    """Equal tokens are reused whatever template rendered them, and under no other salt."""
    world = World()
    world.store(range(20), template_sig="A")
    assert getattr(world.adopt(range(30), template_sig="B")[0], "length", 0) == 20
    world.namespace = world.open(NamespaceKey("model", tenant_salt="x", block_size=4))
    assert getattr(world.adopt(range(30), template_sig="A")[0], "length", 0) == 0


def test_lookups_change_nothing_when_only_asked() -> None:
    """Deciding an arrival without applying it answers what it would hit: the state stays as it was."""
    from mlxcel.core.checkpoint import fingerprint
    from mlxcel.core.decide.table import decide

    world = World()
    world.store(range(20))
    before = fingerprint(world.state)
    probe = cmd.AdoptPrefix(
        at_us=9, request="probe", namespace=1, template_sig="s", session_key="x", tokens=from_ids(range(30))
    )
    found = decide(world.state, probe)[1]
    assert isinstance(found, ev.PrefixAdopted)
    assert found.length == 20
    assert fingerprint(world.state) == before
