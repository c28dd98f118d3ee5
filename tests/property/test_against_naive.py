"""Random conversations: the core against a naive model of plain lists. Same hits, lengths, evictions and bytes."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.state import State
from mlxcel.core.tokens import from_ids, to_ids
from tests.property.naive import BLOCK, MIN_PREFIX, TOKEN_BYTES, NaiveCache

OWN_TTL = [-1, -1, -1, 20, 60, 150, 1000]  # a time to live that the request brings along; -1: none
small = st.integers(0, 3)
words = st.lists(st.integers(0, 2), max_size=12)
# A turn follows a conversation for a while (all of it: a retry; less: an edit or a fork) and goes on in its own words.
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            small,
            st.sampled_from([99, 99, 99, 5, 9, 14, 22]),
            words,
            st.integers(0, 1),
            small,
            st.sampled_from(OWN_TTL),
        ),
        st.tuples(st.just("seal"), small, st.integers(1, 60)),
        st.tuples(st.just("donate"), small, words),
        st.tuples(st.just("donate"), small, words),
        st.tuples(st.just("cancel"), small),
        st.tuples(st.just("fail"), small),
        st.tuples(st.just("jump"), st.sampled_from([1, 40, 100, 400])),
        st.tuples(st.just("wait"), st.sampled_from([15, 40, 100, 400])),
        st.tuples(st.just("reset")),
    ),
    max_size=60,
)  # fmt: skip
settled = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([200, 400, 1000, 4000]),
        "max_entries": st.sampled_from([1, 2, 4, 50]),
        "ttl": st.sampled_from([0, 100, 300]),
        "by_entries": st.booleans(),
        "whole_only": st.sampled_from([False, False, True]),
    }
)


class Pair:
    """The core and the naive model, told the same things and compared after each."""

    def __init__(self, capacity: int, max_entries: int, ttl: int, by_entries: bool, whole_only: bool) -> None:
        self.naive = NaiveCache(capacity, max_entries, ttl, by_entries, whole_only)
        self.state = State()
        self.at_us = self.asked = 0
        self.talks: list[list[int]] = [[], [], [], []]
        self.talk_of: dict[str, int] = {}
        policy = Policy(
            capacity_bytes=capacity, max_entries=max_entries, ttl_us=ttl, min_prefix_tokens=MIN_PREFIX,
            block_size=BLOCK, segment_tokens=BLOCK, write_policy="off", disk_capacity_bytes=0,
            ranking="entry-lru" if by_entries else "leaf-lru", apc_enabled=not whole_only,
        )  # fmt: skip
        self.do(cmd.AdoptPolicy(at_us=0, policy=policy))

    def namespace(self, salt: int) -> int:
        """Return the number of a salt's namespace, opened if need be."""
        key = NamespaceKey("m", tenant_salt=str(salt), block_size=BLOCK)
        command = cmd.OpenNamespace(
            at_us=self.at_us, key=key, model_id="m", kv_bytes_per_token=TOKEN_BYTES, reuse="prefix"
        )
        self.do(command)
        return self.state.by_namespace[key.digest()]

    def salt(self, namespace: int) -> int:
        """Return whose a namespace is."""
        return int(self.state.namespaces[namespace].key.tenant_salt)

    def do(self, command: cmd.Command) -> tuple[list[ev.Event], list[Any]]:
        """Decide and apply; returns the events and what left the cache, in the naive model's words."""
        events = decide(self.state, command)
        left: list[Any] = []
        for event in events:
            if isinstance(event, ev.EntryEvicted):
                left.append(("entry", event.entry))
            elif isinstance(event, ev.PieceEvicted):
                salt = self.salt(self.state.nodes[event.node].namespace)
                left.append(("piece", (salt, tuple(to_ids(self.state.path_tokens(event.node))))))
        apply(self.state, command.at_us, events)
        return events, left

    def step(self, kind: str, *arguments: Any) -> None:
        """One step in both worlds."""
        self.at_us += 1
        self.naive.now = self.at_us
        if kind in ("seal", "donate", "cancel", "fail"):
            running = list(self.naive.requests)
            if not running:
                return
            arguments = (running[arguments[0] % len(running)], *arguments[1:])
        getattr(self, kind)(*arguments)
        self.compare()

    def ask(self, talk: int, cut: int, more: list[int], session: int, salt: int, ttl: int) -> None:
        """A turn of a conversation."""
        tokens = [*self.talks[talk][:cut], *more]
        if not tokens:
            return
        self.asked += 1
        name, salt = f"r{self.asked}", salt % 2
        events, _ = self.do(
            cmd.AdoptPrefix(
                at_us=self.at_us, request=name, namespace=self.namespace(salt), template_sig="t", session_key=str(session),
                tokens=from_ids(tokens), ttl_us=ttl,
            )
        )  # fmt: skip
        adopted = next((e.length for e in events if isinstance(e, ev.PrefixAdopted)), 0)
        assert adopted == self.naive.ask(name, salt, session, tuple(tokens), ttl)
        self.talk_of[name] = talk

    def seal(self, name: str, length: int) -> None:
        """Prefill goes on."""
        length = min(length, len(self.naive.requests[name]["tokens"]))
        _, left = self.do(cmd.SealPrefix(at_us=self.at_us, request=name, length=length))
        assert left == self.naive.seal(name, length)

    def donate(self, name: str, answer: list[int]) -> None:
        """An answer is complete, and the conversation goes on from there."""
        tokens = [*self.naive.requests[name]["tokens"], *answer]
        command = cmd.DonatePrefix(at_us=self.at_us, request=name, generated=from_ids(answer), length=len(tokens))
        _, left = self.do(command)
        assert left == self.naive.donate(name, tuple(answer))
        self.talks[self.talk_of[name]] = tokens[:60]

    def cancel(self, name: str) -> None:
        """A client gives up."""
        _, left = self.do(cmd.EndRequest(at_us=self.at_us, request=name, outcome="cancelled"))
        assert left == self.naive.cancel(name)

    def fail(self, name: str) -> None:
        """A request fails."""
        _, left = self.do(cmd.EndRequest(at_us=self.at_us, request=name, outcome="failed"))
        assert left == []
        self.naive.fail(name)

    def jump(self, by_us: int) -> None:
        """The clock jumps, and what is too old is swept."""
        self.at_us += by_us
        self.naive.now = self.at_us
        _, left = self.do(cmd.SweepExpired(at_us=self.at_us, limit=10_000))
        assert left == self.naive.sweep()

    def wait(self, for_us: int) -> None:
        """Time goes by, and no sweep comes."""
        self.at_us += for_us
        self.naive.now = self.at_us

    def reset(self) -> None:
        """The operator empties the cache."""
        self.do(cmd.ResetCache(at_us=self.at_us))
        self.naive.reset()

    def compare(self) -> None:
        """Bytes, blocks, entries in order of use with their lengths, counters: all the same."""
        state, naive = self.state, self.naive
        assert state.memory_bytes[False] == naive.size()
        ours = [
            (self.salt(state.entries[e].namespace), e, state.entries[e].length, state.entries[e].last_used_us)
            for e in state.resident
        ]
        assert ours == [(e["salt"], e["number"], len(e["kept"]), e["used"]) for e in naive.entries]
        order = [(self.salt(n.namespace), tuple(to_ids(state.path_tokens(n.id)))) for n in self._resident()]
        assert order == naive.blocks
        counted = [state.counters.get(name, 0) for name in ("hits", "misses", "prefix_tokens_reused")]
        assert counted == [naive.hits, naive.misses, naive.reused]

    def _resident(self) -> list[Any]:
        return [self.state.nodes[node_id] for node_id in self.state.lru["memory", False]]


def play(policy: dict[str, Any], history: list[tuple[Any, ...]]) -> None:
    """Run a history in both worlds."""
    pair = Pair(**policy)
    for step in history:
        pair.step(*step)


def long_history(seed: int) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return settings and 80 steps, mostly turns that go on: what fills a cache and keeps it full."""
    rng = random.Random(seed)
    policy = {
        "capacity": rng.choice([200, 400, 1000, 4000]),
        "max_entries": rng.choice([1, 2, 4, 50]),
        "ttl": rng.choice([0, 100, 300]),
        "by_entries": rng.random() < 0.5,
        "whole_only": rng.random() < 0.3,
    }
    kinds = ["ask"] * 24 + ["seal"] * 10 + ["donate"] * 16 + ["cancel"] * 5 + ["fail"] * 5
    kinds += ["jump"] * 5 + ["wait"] * 8 + ["reset"]
    history: list[tuple[Any, ...]] = []
    for _ in range(80):
        kind, more = rng.choice(kinds), [rng.randrange(3) for _ in range(rng.randrange(12))]
        arguments: dict[str, tuple[Any, ...]] = {
            "ask": (
                rng.randrange(4),
                rng.choice([99, 99, 99, 5, 9, 14, 22]),
                more,
                rng.randrange(2),
                rng.choice([0, 0, 1]),
                rng.choice(OWN_TTL),
            ),
            "seal": (rng.randrange(4), rng.randrange(1, 60)),
            "donate": (rng.randrange(4), more),
            "cancel": (rng.randrange(4),),
            "fail": (rng.randrange(4),),
            "jump": (rng.choice([1, 40, 100, 400]),),
            "wait": (rng.choice([15, 40, 100]),),
            "reset": (),
        }
        history.append((kind, *arguments[kind]))
    return policy, history


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_long_histories(first: int) -> None:
    """Ten histories of 80 steps that fill the cache: the same hits, lengths, evictions and bytes."""
    for seed in range(first, first + 10):
        play(*long_history(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_long_histories(first: int) -> None:
    """The same for 2,000 more."""
    for seed in range(first, first + 100):
        play(*long_history(seed))


@settings(max_examples=150)
@given(settled, steps)
def test_core_does_what_plain_lists_do(policy: dict[str, Any], history: list[tuple[Any, ...]]) -> None:
    """Forks, edits, retries, sessions, salts, resets and clock jumps: hits, lengths, evictions and bytes agree."""
    play(policy, history)


@pytest.mark.slow
@settings(max_examples=3_000)
@given(settled, steps)
def test_core_does_what_plain_lists_do_for_long(policy: dict[str, Any], history: list[tuple[Any, ...]]) -> None:
    """The same for many more histories."""
    play(policy, history)
