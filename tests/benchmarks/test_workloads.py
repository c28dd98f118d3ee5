"""Workloads: the same seed gives the same load, and prefixes are shared as promised."""

import itertools
import json
from pathlib import Path

import pytest

from benchmarks import recorded, workloads
from benchmarks.load import shapes
from ops.replay.mooncake import read_mooncake


def common(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens agree."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_same_seed_same_load() -> None:
    """Every generator gives the same twice, and something else for another seed."""
    makers = [
        lambda seed: workloads.ids(seed, 50),
        lambda seed: workloads.words(seed, 50),
        lambda seed: workloads.conversations(seed, 2, 3, 20, 5, 4),
        lambda seed: workloads.agent_loop(seed, 4, 20, 8),
        lambda seed: workloads.forks(seed, 3, 20, 5),
        lambda seed: workloads.chatter(seed, 20, 1.0),
    ]
    for make in makers:
        assert make(1) == make(1)
        assert make(1) != make(2)


def test_ids_avoid_specials_and_stay_in_vocabulary() -> None:
    """Ids are in the vocabulary and not among its first, where special tokens stand."""
    assert min(workloads.ids(1, 1000)) >= workloads.FIRST_ID
    assert max(workloads.ids(1, 1000, vocab=500)) < 500


def test_conversations_extend_and_share() -> None:
    """Each turn extends the turn before; users share the system prompt and nothing after it."""
    told = workloads.conversations(3, users=3, turns=3, system_tokens=40, turn_tokens=10, answer_tokens=6)
    for prompts in told:
        for before, after in itertools.pairwise(prompts):
            assert after[: len(before)] == before
            assert len(after) == len(before) + 16
    assert common(told[0][0], told[1][0]) == 40


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_shared_share_is_exact(share: float) -> None:
    """Prompts of one length share exactly the promised part."""
    prompts = workloads.shared_share(1, 3, 200, share)
    assert {len(p) for p in prompts} == {200}
    assert common(prompts[0], prompts[1]) == round(200 * share)


def test_chatter_arrives_in_order_and_shares() -> None:
    """Arrivals are in order of time, and a good part of the tokens was seen before."""
    load = workloads.chatter(5, 100, rate=2.0)
    assert [a.at_s for a in load] == sorted(a.at_s for a in load)
    assert 0.2 < workloads.prefix_share([a.prompt for a in load]) < 0.95


def test_lies_keep_lengths_and_times() -> None:
    """All equal and all random keep each prompt's length and time; one shares everything it can, the other nothing."""
    load = workloads.chatter(5, 40, rate=2.0)
    made = shapes(load, 1, 40_000)
    for arrivals in made.values():
        assert [(a.at_s, len(a.prompt), a.answer_tokens) for a in arrivals] == [
            (a.at_s, len(a.prompt), a.answer_tokens) for a in load
        ]
    known = {name: workloads.prefix_share([a.prompt for a in arrivals]) for name, arrivals in made.items()}
    assert known["all random"] == 0.0
    assert known["all random"] < known["as it was"] < known["all equal"]


def test_trace_keeps_its_sharing(tmp_path: Path) -> None:
    """Equal hash ids become equal tokens, others do not; lengths and times are the trace's, scaled."""
    rows = [
        {"timestamp": 1000, "input_length": 1000, "output_length": 64, "hash_ids": [7, 8]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 8, "hash_ids": [7, 8, 9]},
        {"timestamp": 3500, "input_length": 1024, "output_length": 1, "hash_ids": [7, 10]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = recorded.from_trace(read_mooncake(path), 10, scale=0.125, vocab=40_000, seed=1)
    assert [a.at_s for a in load] == [0.0, 2.0, 2.5]
    assert [len(a.prompt) for a in load] == [125, 188, 128]
    assert [a.answer_tokens for a in load] == [8, 1, 1]
    assert common(load[0].prompt, load[1].prompt) == 125
    assert common(load[1].prompt, load[2].prompt) == 64


def test_disguise_keeps_sharing_and_hides_tokens() -> None:
    """A disguised prompt shares whole blocks with another exactly where the originals did, and none of their tokens' order."""
    a, b = workloads.forks(1, 2, shared_tokens=70, own_tokens=50)
    hidden_a, hidden_b = (recorded.disguised(p, 9, 40_000) for p in (a, b))
    assert common(hidden_a, hidden_b) == 64
    assert len(hidden_a) == len(a)
    assert common(hidden_a, a) == 0


def test_spoken_prompts_keep_sharing() -> None:
    """As text, one word a token, prompts share what they shared as ids."""
    a, b = workloads.forks(1, 2, shared_tokens=10, own_tokens=5)
    words = [workloads.spoken(p).split() for p in (a, b)]
    assert [len(w) for w in words] == [15, 15]
    assert words[0][:10] == words[1][:10]
