"""What-if tells the truth: about recorded logs through `decide`, and about traces through the lean simulation."""

import random

import msgspec
import pytest

from mlxcel.core import commands as cmd
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.record import decode_record, expand_record
from mlxcel.core.state import State
from mlxcel.core.tokens import from_ids
from mlxcel.core.whatif.blocks import (
    BlockArrival,
    BlockTrace,
    PromptArrival,
    build_trace,
    chain_prompts,
    unbounded_hits,
)
from mlxcel.core.whatif.redrive import Redrive
from mlxcel.core.whatif.simulate import POLICIES, simulate
from tests.ops.driver import Driver, conversations, play, policy


def redrive_log(driver: Driver, **settings: object) -> Redrive:
    """Decide a driver's log again under changed settings."""
    then = State()
    run = Redrive(State(), lambda p: msgspec.structs.replace(p, **settings), sweep_us=0)
    for checkpoint, payload in driver.payloads:
        if not checkpoint:
            record = expand_record(then, decode_record(payload))
            run.feed(record)
            apply(then, record.command.at_us, record.events)
    return run


@pytest.mark.parametrize(
    "change",
    [
        {"capacity_bytes": 300_000},
        {"capacity_bytes": 5_000_000},
        {"max_entries": 5},
        {"min_prefix_tokens": 300},
        {"apc_enabled": False},
        {"ranking": "entry-lru"},
        {"ttl_us": 30_000_000},
    ],
    ids=str,
)
@pytest.mark.parametrize("write_policy", ["off", "behind"])
def test_a_log_predicts_every_hit_of_a_run_under_other_settings(change: dict[str, int], write_policy: str) -> None:
    """600 requests recorded at one capacity tell how many tokens each would reuse under other settings, exactly."""
    made = conversations(5, 600)
    disk = {"write_policy": write_policy, "disk_capacity_bytes": 1_200_000}
    recorded = Driver(policy(capacity_bytes=1_000_000, **disk))
    play(recorded, made)
    real = Driver(msgspec.structs.replace(policy(capacity_bytes=1_000_000, **disk), **change))
    play(real, made)
    run = redrive_log(recorded, **change)
    assert {s.request: s.tokens for s in run.served} == real.hits
    assert {s.request: s.recorded_tokens for s in run.served} == recorded.hits
    assert real.hits != recorded.hits or write_policy == "behind"
    assert run.decided.tokens_saved == sum(real.hits.values())
    assert len(run.served) == 600


def some_trace(seed: int, requests: int = 400) -> BlockTrace:
    """Return chats over a few system prompts as opaque blocks."""
    rng = random.Random(seed)
    fresh = iter(range(10**9))
    systems = [[next(fresh) for _ in range(rng.randrange(1, 6))] for _ in range(3)]
    chats: list[list[int]] = []
    arrivals = []
    for n in range(requests):
        if chats and rng.random() < 0.7:
            path = rng.choice(chats[-40:])
        else:
            path = list(rng.choice(systems))
            chats.append(path)
        path += [next(fresh) for _ in range(rng.randrange(0, 6))]
        arrivals.append(BlockArrival(n * 1_000_000, tuple(path), len(path) * 512))
    return build_trace(arrivals, 512)


def decided_hits(trace: BlockTrace, capacity: int, ranking: str = "leaf-lru") -> list[int]:
    """Feed the trace's blocks as tokens of a namespace with blocks of one token; returns blocks reused per arrival."""
    state, hits = State(), []

    def run(command: cmd.Command) -> list[object]:
        events = decide(state, command)
        apply(state, command.at_us, events)
        return list(events)

    settings = Policy(
        capacity_bytes=capacity, max_entries=10**6, ttl_us=0, min_prefix_tokens=1, block_size=1, segment_tokens=1,
        write_policy="off", disk_capacity_bytes=0, ranking=ranking,
    )  # fmt: skip
    run(cmd.AdoptPolicy(at_us=0, policy=settings))
    run(cmd.OpenNamespace(
        at_us=0, key=NamespaceKey("trace", block_size=1), model_id="m", kv_bytes_per_token=1, reuse="prefix"
    ))  # fmt: skip
    for n, arrival in enumerate(trace.arrivals):
        # The last token is always computed, so each prompt gets one that nobody shares and that is not kept.
        tokens = from_ids([*arrival.blocks, 2**30 + n])
        run(cmd.AdoptPrefix(
            at_us=arrival.at_us, request=str(n), namespace=1, template_sig="t", session_key="s", tokens=tokens
        ))  # fmt: skip
        hits.append(state.requests[str(n)].adopted)
        run(cmd.DonatePrefix(at_us=arrival.at_us, request=str(n), generated=b"", length=len(arrival.blocks)))
    return hits


@pytest.mark.parametrize("capacity", [8, 25, 60, 200, 10_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_lean_simulation_agrees_with_decide(seed: int, capacity: int) -> None:
    """The simulation's leaf-lru serves exactly the blocks that `decide` would, arrival by arrival."""
    trace = some_trace(seed)
    assert simulate(trace, "leaf-lru", capacity).hits == decided_hits(trace, capacity)


@pytest.mark.parametrize("capacity", [25, 60, 200, 10_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_entry_lru_agrees_with_decide(seed: int, capacity: int) -> None:
    """The simulation's lru serves what the server's "entry-lru" would, arrival by arrival."""
    trace = some_trace(seed)
    assert simulate(trace, "lru", capacity).hits == decided_hits(trace, capacity, "entry-lru")


@pytest.mark.parametrize("name", POLICIES)
def test_an_unbounded_cache_serves_what_was_seen(name: str) -> None:
    """With room for all, every policy serves exactly the blocks that came before."""
    trace = some_trace(3)
    outcome = simulate(trace, name, trace.blocks)
    assert (outcome.hit_blocks, trace.asked_blocks) == unbounded_hits(trace.arrivals)
    assert outcome.evictions == outcome.refused == 0


@pytest.mark.parametrize("capacity", [5, 20, 80, 300])
def test_no_policy_beats_the_bound(capacity: int) -> None:
    """The clairvoyant serves at least as many blocks as any other policy."""
    for seed in range(4):
        trace = some_trace(seed)
        bound = simulate(trace, "belady", capacity).hit_blocks
        assert all(simulate(trace, name, capacity).hit_blocks <= bound for name in POLICIES)


def test_prompts_become_blocks() -> None:
    """Whole blocks of equal prefixes share a number, within one namespace only."""
    one, two = list(range(40)), [*range(32), *range(90, 98)]
    prompts = [
        PromptArrival(1, 1, from_ids(one)), PromptArrival(2, 1, from_ids(two)), PromptArrival(3, 2, from_ids(one))
    ]  # fmt: skip
    trace = chain_prompts(prompts, 16)
    assert [a.blocks for a in trace.arrivals] == [(0, 1), (0, 1), (2, 3)]
    assert trace.parents == [-1, 0, -1, 2]


def test_a_block_with_two_parents_is_refused() -> None:
    """Numbers that don't stand for their prefix are no trace."""
    with pytest.raises(ValueError, match="follows different blocks"):
        build_trace([BlockArrival(0, (1, 2), 10), BlockArrival(1, (3, 2), 10)], 512)


def test_an_operators_pin_is_followed_by_content() -> None:
    """A pin names another entry number in the other world, but holds the entry of the same content there."""
    recorded = Driver(policy(capacity_bytes=100 * 2000))
    recorded.serve("small", list(range(100)))
    recorded.serve("pinned", list(range(500, 700)))
    entry = next(e.id for e in recorded.state.entries.values() if e.length > 150)
    recorded.run(cmd.PinPrefix(at_us=recorded.now_us, name="keep", entry=entry))
    for n in range(4):
        recorded.serve(f"big{n}", [5000 + 1000 * n + i for i in range(700)])
    recorded.serve("again", list(range(500, 700)))
    run = redrive_log(recorded, capacity_bytes=100 * 1000)
    assert run.state.pins.keys() == {"keep"}
    assert run.served[-1].tokens == recorded.hits["again"] > 100
    assert not run.skipped


def test_background_look_ups_do_not_count() -> None:
    """An errand of the server's own is decided again but is no request."""
    recorded = Driver(policy())
    recorded.serve("first", list(range(100)))
    recorded.run(cmd.AdoptPrefix(
        at_us=recorded.now_us, request="errand", namespace=1, template_sig="t", session_key="s",
        tokens=from_ids(range(100)), background=True,
    ))  # fmt: skip
    run = redrive_log(recorded, capacity_bytes=1 << 20)
    assert [s.request for s in run.served] == ["first"]
    assert "errand" in run.state.requests


def test_namespaces_that_the_recorded_cache_forgot() -> None:
    """Under other settings a prefix of a namespace that went and came back may still be there; and one that stayed may go."""
    lives_on = Driver(policy(capacity_bytes=1 << 20, ttl_us=0))
    short = Driver(policy(capacity_bytes=1 << 20, ttl_us=5_000_000))
    for driver in (lives_on, short):
        for turn in range(3):
            for salt in ("a", "b", "c"):
                space = driver.open(salt, model="tiny")
                driver.serve(f"{salt}{turn}", list(range(200)), session=salt, namespace=space)
            driver.wait(10)
            for _ in range(2):  # what a sweep empties the next one forgets
                driver.run(cmd.SweepExpired(at_us=driver.now_us, limit=100))
    assert short.state.next_namespace > lives_on.state.next_namespace
    assert [s.tokens > 0 for s in redrive_log(short, ttl_us=0).served] == [False] * 3 + [True] * 6
    assert not any(s.tokens for s in redrive_log(lives_on, ttl_us=5_000_000).served)
