"""Reported faults of reuse (classes A, B and D), over HTTP on a dense model: every hit answers as a cold run does."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ask, ask_cold, metric, prompt, same


def streamed(daemon: Daemon, ids: list[int]) -> tuple[str, list[int], dict[str, Any]]:
    """Stream a completion; returns text, token ids and usage."""
    body = {"prompt": ids, "max_tokens": 6, "temperature": 0, "stream": True, "return_token_ids": True}
    body["stream_options"] = {"include_usage": True}
    text, tokens, usage = "", [], {}
    with daemon.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["text"]
                tokens += choice.get("token_ids") or []
    return text, tokens, usage


@pytest.mark.parametrize("length", [1, 2, 8, 15, 16, 17, 31, 32, 33, 48])
def test_the_same_prompt_again(daemon: Daemon, length: int) -> None:
    """The same prompt, streamed and not, leaves a token to compute and says the same; so do its answer and its parts (B001)."""
    ids = prompt(1000 + length, length)
    first = ask(daemon, ids)
    assert same(first, ask(daemon, ids))
    text, _, usage = streamed(daemon, ids)
    assert text == first["choices"][0]["text"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= length - 1
    told = ids + first["choices"][0]["token_ids"]
    for other in (told, told[:-1], ids[: max(1, length // 2)], ids[:-1] or ids):
        assert same(ask(daemon, other), ask_cold(daemon, other))
    assert ask(daemon, prompt(2000 + length, 9))["choices"][0]["token_ids"]


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 31, 32, 33, 300, 700])
def test_three_kinds_of_match(daemon: Daemon, shared: int) -> None:
    """Common prefix, strict extension and exact repeat around block borders, and past the allocation step (B003, B017)."""
    system = prompt(shared, shared)
    first = system + prompt(3000 + shared, 20)
    answer = ask(daemon, first)
    turns = [system + prompt(4000 + shared, 20), first + answer["choices"][0]["token_ids"] + prompt(5, 7), first]
    for ids in turns:
        reply = ask(daemon, ids)
        assert same(reply, ask_cold(daemon, ids))
        known = shared if ids is turns[0] else len(first)
        assert cached(reply) >= min(known, len(ids) - 1) // 16 * 16 or known < 16
    assert cached(ask(daemon, turns[0])) >= (len(turns[0]) - 1) // 16 * 16


def test_what_followed_a_shared_prefix_is_not_seen(daemon: Daemon) -> None:
    """After each of 50 code words behind one system prompt, a question behind it is answered as cold (B006)."""
    system, question = prompt(50, 44), prompt(51, 9)
    cold = ask_cold(daemon, system + question)
    for word in range(50):
        ask(daemon, system + prompt(6000 + word, 12))
        assert same(ask(daemon, system + question), cold)


@pytest.mark.parametrize("alike", [False, True])
def test_siblings_in_one_step(daemon: Daemon, alike: bool) -> None:
    """16 requests that start together on an empty cache see finished blocks only; identical ones too (B022)."""
    base = prompt(77, 128)
    prompts = [base + ([5] if alike else prompt(7000 + n, 5)) for n in range(16)]
    cold = [ask_cold(daemon, ids) for ids in (prompts[:1] if alike else prompts)]
    for _ in range(2):
        daemon.http.post("/v1/cache/reset")
        barrier = threading.Barrier(16)

        def run(ids: list[int], barrier: threading.Barrier = barrier) -> dict[str, Any]:
            barrier.wait(30)
            return ask(daemon, ids)

        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(run, prompts))
        for number, reply in enumerate(replies):
            assert same(reply, cold[0 if alike else number])


def test_cached_tokens_are_those_not_computed(daemon: Daemon) -> None:
    """What 80 replies report adds up to the counter of reused tokens; prompts nobody sent before report none (B040)."""
    before, told = metric(daemon, "mlxcel_prompt_cache_prefix_tokens_reused_total"), 0
    for number in range(80):
        unique = number % 2 == 0
        ids = prompt(8000 + number, 100) if unique else prompt(8000 + number - 1, 30 + number % 60) + prompt(number, 5)
        reply = ask(daemon, ids)
        told += cached(reply)
        assert not unique or cached(reply) == 0
    assert metric(daemon, "mlxcel_prompt_cache_prefix_tokens_reused_total") - before == told


def test_bytes_stay_within_the_cap_on_every_path(daemon: Daemon) -> None:
    """Streamed, whole, chat, completion, stopped and tools: after each request the bytes are within the cap (B088)."""
    cap = 120_000
    daemon.http.post("/admin/reload", json={"capacity_bytes": cap}).raise_for_status()
    try:
        for number in range(64):
            words = " ".join(map(str, prompt(9000 + number, 40)))
            body: dict[str, Any] = {"max_tokens": 4, "stream": bool(number % 2)}
            if number % 4 < 2:
                path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": words}]
            else:
                path, body["prompt"] = "/v1/completions", words
            if number % 8 >= 4:
                body["stop"] = ["e"]
            assert daemon.http.post(path, json=body).status_code == 200
            assert metric(daemon, "mlxcel_prompt_cache_bytes") <= cap
        assert metric(daemon, "mlxcel_prompt_cache_bytes") > 0
    finally:
        daemon.http.post("/admin/reload", json={"capacity_bytes": 1 << 30}).raise_for_status()
    assert daemon.http.post("/admin/check").json() == {"broken": []}
