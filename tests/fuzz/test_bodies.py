"""Request bodies that nobody would write, sent to the real app: every answer is 2xx or 4xx in the route's own shape."""

import json
import random
from typing import Any

import httpx
import pytest

from tests.fuzz.mutate import spoil_bytes, spoil_value
from tests.http.conftest import Running

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
COMMON: dict[str, Any] = {
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 7, "stop": ["x", "yz"],
    "logit_bias": {"5": -1.5}, "n": 1, "stream": False, "stream_options": {"include_usage": True}, "user": "u",
    "cache_prompt": True, "cache_ttl_s": 5, "cache_salt": "s", "prompt_cache_key": "k", "presence_penalty": 0.1,
}  # fmt: skip
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {
            **COMMON,
            "model": "m",
            "messages": [{"role": "system", "content": "be"}, USER],
            "logprobs": True,
            "top_logprobs": 2,
        },
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "chat_template_kwargs": {"enable_thinking": False},
            "max_tokens": 2,
        },
    ],
    "/v1/completions": [
        {**COMMON, "prompt": "hello there", "logprobs": 2, "echo": False},
        {"prompt": [[1, 2, 3]], "max_tokens": 1},
    ],
    "/v1/messages": [
        {
            "model": "m",
            "max_tokens": 3,
            "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "stop_sequences": ["q"],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "thinking": {"type": "disabled"},
        }
    ],
    "/completion": [{"prompt": "hello", "n_predict": 3, "temperature": 0, "stop": ["a"], "cache_prompt": True}],
    "/tokenize": [{"content": "hello", "add_special": True}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/cache/probe": [{"prompt": "hello"}, {"messages": [USER]}],
    "/admin/reload": [{"capacity_bytes": 5, "ttl_s": 1.5}],
    "/admin/pins": [{"name": "p", "entry": 1}],
    "/admin/jobs/run": [{"name": "sweep"}],
}


def bodies(seed: int, count: int) -> list[tuple[str, bytes]]:
    """Return (route, body) pairs: valid ones with values of other kinds, or bytes changed."""
    rng = random.Random(seed)
    made = []
    while len(made) < count:
        path = rng.choice(sorted(BODIES))
        body = spoil_value(rng, rng.choice(BODIES[path]), rng.randint(1, 3))
        try:
            data = json.dumps(body, default=lambda value: value.decode("latin-1")).encode()
        except (TypeError, ValueError):
            continue
        made.append((path, data if rng.random() < 0.8 else spoil_bytes(rng, data)))
    return made


def send(running: Running, seed: int, count: int) -> None:
    """Send and check; a failure names route and body."""
    statuses = set()
    with httpx.Client(base_url=running.base, timeout=20) as client:
        for path, data in bodies(seed, count):
            answer = client.post(path, content=data, headers={"content-type": "application/json"})
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (path, data, answer.text)
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"], (path, data, answer.text)
            else:
                assert b'"error"' not in answer.content[:20], (path, data, answer.text)
            for word in ("Traceback", "site-packages", "msgspec", "litestar"):
                assert word not in answer.text, (path, data, answer.text)
    assert {200, 400} <= statuses


def test_no_bytes_are_a_server_error(running: Running) -> None:
    """250 spoiled bodies of all routes end below 500 with an error that has words; the service still answers (B100)."""
    send(running, 1, 250)
    assert running.client().chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}]).choices


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_bytes_are_a_server_error_long(running: Running, seed: int) -> None:
    """The same for many more."""
    send(running, seed, 3000)
