"""Seeded workloads: token ids or words, in the shapes in which people and agents share prefixes. Pure.

A prompt is a list of token ids. The same arguments give the same workload on every machine.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

FIRST_ID = 100  # below stand a vocabulary's special tokens
SYLLABLES = [first + last for first in "bdfgjklmnprstvwz" for last in ("a", "ei", "o", "un")]


class Arrival(NamedTuple):
    """One request of a load: when, what, and how many tokens of answer it asks for."""

    at_s: float
    prompt: list[int]
    answer_tokens: int


def ids(seed: int | str, length: int, vocab: int = 40_000) -> list[int]:
    """Return `length` seeded token ids, none special."""
    rng = random.Random(f"ids-{seed}")
    first = min(FIRST_ID, vocab // 8)
    return [rng.randrange(first, vocab) for _ in range(length)]


def words(seed: int | str, count: int) -> str:
    """Return `count` invented words, one or two tokens a syllable, for servers that take text only."""
    rng = random.Random(f"words-{seed}")
    made = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(count)]
    return " ".join(made)


def conversations(
    seed: int, users: int, turns: int, system_tokens: int, turn_tokens: int, answer_tokens: int, vocab: int = 40_000
) -> list[list[list[int]]]:
    """Return per user the prompts of each turn; all begin with one system prompt, each turn extends the one before.

    The assistant's words are made up too (`answer_tokens` of them), as a client that sends its history does.
    """
    system = ids(f"{seed}-system", system_tokens, vocab)
    told = []
    for user in range(users):
        prompt, prompts = list(system), []
        for turn in range(turns):
            prompt = prompt + ids(f"{seed}-{user}-{turn}", turn_tokens, vocab)
            prompts.append(prompt)
            prompt = prompt + ids(f"{seed}-{user}-{turn}-answer", answer_tokens, vocab)
        told.append(prompts)
    return told


def agent_loop(seed: int, steps: int, head_tokens: int, result_tokens: int, vocab: int = 40_000) -> list[list[int]]:
    """Return the prompts of one agent: system prompt and tools, then a tool's result is added at each step."""
    return conversations(seed, 1, steps, head_tokens, result_tokens, result_tokens // 4, vocab)[0]


def forks(seed: int, count: int, shared_tokens: int, own_tokens: int, vocab: int = 40_000) -> list[list[int]]:
    """Return prompts that share a prefix and then differ: siblings of one task, or entries after one system prompt."""
    head = ids(f"{seed}-head", shared_tokens, vocab)
    return [head + ids(f"{seed}-own-{n}", own_tokens, vocab) for n in range(count)]


def shared_share(seed: int, count: int, length: int, share: float, vocab: int = 40_000) -> list[list[int]]:
    """Return prompts of `length` tokens whose first `share` (0..1) is common to all."""
    common = round(length * share)
    return forks(seed, count, common, length - common, vocab)


def chatter(
    seed: int, requests: int, rate: float, block_tokens: int = 64, answer_tokens: int = 16, vocab: int = 40_000
) -> list[Arrival]:
    """Return a chat service's hour in small: few system prompts (some liked far more), turns that come back, Poisson times.

    `rate`: requests a second. Shaped after the published conversation trace of Mooncake (FAST'25): one prefix that
    most requests share, sessions of a few turns, long and unequal prompts.
    """
    rng = random.Random(f"chatter-{seed}")
    systems = [ids(f"{seed}-system-{n}", block_tokens * rng.randint(1, 6), vocab) for n in range(5)]
    sessions: list[list[int]] = []
    arrivals, at = [], 0.0
    for n in range(requests):
        at += rng.expovariate(rate)
        fresh = ids(f"{seed}-turn-{n}", max(1, int(block_tokens * rng.lognormvariate(0.3, 0.8))), vocab)
        if sessions and rng.random() < 0.4:
            prompt = sessions.pop(rng.randrange(len(sessions))) + fresh
        else:
            prompt = rng.choices(systems, weights=[16, 8, 4, 2, 1])[0] + fresh
        wanted = max(1, int(rng.expovariate(1 / answer_tokens)))
        arrivals.append(Arrival(at, prompt, wanted))
        sessions.append(prompt + ids(f"{seed}-answer-{n}", wanted, vocab))
    return arrivals


def all_equal(load: list[Arrival]) -> list[Arrival]:
    """Return the load with every prompt cut from one: the lie that flatters a cache."""
    longest = max((arrival.prompt for arrival in load), key=len, default=[])
    return [arrival._replace(prompt=longest[: len(arrival.prompt)]) for arrival in load]


def all_random(load: list[Arrival], seed: int, vocab: int = 40_000) -> list[Arrival]:
    """Return the load with nothing shared: the lie that hides a cache."""
    return [a._replace(prompt=ids(f"{seed}-random-{n}", len(a.prompt), vocab)) for n, a in enumerate(load)]


def prefix_share(prompts: list[list[int]], block: int = 16) -> float:
    """Return the share of all tokens that an unbounded cache of whole blocks would have known when they arrived."""
    seen: set[tuple[int, int]] = set()
    known = total = 0
    for prompt in prompts:
        total += len(prompt)
        chain, fresh = 0, False
        for at in range(0, len(prompt) - len(prompt) % block, block):
            chain = chained(chain, prompt[at : at + block])
            key = (at, chain)
            fresh = fresh or key not in seen
            known += 0 if fresh else block
            seen.add(key)
    return known / total if total else 0.0


def chained(chain: int, block: list[int]) -> int:
    """Return a 61-bit hash of a block and what came before it; the same in every process (Python's own is for ints)."""
    modulus = (1 << 61) - 1
    for token in block:
        chain = (chain * 1_000_003 + token + 1) % modulus
    return chain


def spoken(prompt: list[int]) -> str:
    """Return a prompt as text with one short word a token: equal prefixes stay equal, for servers that take no ids."""
    n = len(SYLLABLES)
    return " ".join(SYLLABLES[t % n] + SYLLABLES[t // n % n] for t in prompt)


def batches(items: list[Arrival], size: int) -> Iterator[list[Arrival]]:
    """Yield the items in runs of `size`."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
