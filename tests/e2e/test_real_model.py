"""The road on the real SmolLM2: a chat through the official client, a stop, a kill, and the same text every time."""

import time
from pathlib import Path
from typing import Any

import pytest

from mlxcel.native.build import build
from tests.e2e.daemon import Daemon, cached

ROOT = Path(__file__).resolve().parents[2]


def notes(words: int) -> str:
    """Return real English prose of the project, so that KV is that of real text."""
    text = (ROOT / "README.md").read_text() + (ROOT / "LICENSE").read_text()
    return " ".join(text.split()[:words])


def chat(daemon: Daemon, messages: list[dict[str, str]], **more: Any) -> Any:
    """Ask through the openai client, greedily."""
    return daemon.openai.chat.completions.create(
        model="any", messages=messages, max_tokens=12, temperature=0, extra_body=more or None
    )


def cached_chat(reply: Any) -> int:
    """Return cached_tokens of a chat reply."""
    tokens: int = reply.usage.prompt_tokens_details.cached_tokens
    return tokens


@pytest.mark.model
def test_two_turns_stop_and_kill(embedded_model: Path, tmp_path: Path) -> None:
    """Turn 2 adopts turn 1 warm, after a stop and after kill -9, with the greedy text of a cold run."""
    fast = build().library is not None  # without the BLAS bridge a long prompt takes minutes here
    data = tmp_path / "data"
    first = [
        {"role": "system", "content": "You answer in few words. Notes: " + notes(450 if fast else 20)},
        {"role": "user", "content": "What is this about?"},
    ]
    with Daemon(embedded_model, data) as daemon:
        one = chat(daemon, first)
        assert cached_chat(one) == 0
        history = [*first, {"role": "assistant", "content": one.choices[0].message.content}]
        second = [*history, {"role": "user", "content": "And who may use it?"}]
        warm = chat(daemon, second)
        before = one.usage.prompt_tokens + one.usage.completion_tokens
        assert cached_chat(warm) >= before - 16
        again = chat(daemon, second)
        if fast:
            assert one.usage.prompt_tokens >= 600
        cold = chat(daemon, second, cache_prompt=False)
        assert cached_chat(cold) == 0
        texts = {reply.choices[0].message.content for reply in (warm, again, cold)}
        assert len(texts) == 1
        assert daemon.stop() == 0
    with Daemon(embedded_model, data) as daemon:
        restarted = chat(daemon, second)
        assert cached_chat(restarted) == cached_chat(again)
        assert restarted.choices[0].message.content in texts
        long = notes(1500 if fast else 30)
        reply = daemon.complete(long, 4)
        if fast:
            assert reply["usage"]["prompt_tokens"] >= 2000
        assert cached(reply) == 0
        time.sleep(1.0)
        daemon.kill()
    with Daemon(embedded_model, data) as daemon:
        killed = daemon.complete(long, 4)
        whole_blocks = (reply["usage"]["prompt_tokens"] - 1) // 16 * 16
        assert cached(killed) == whole_blocks
        assert killed["choices"][0]["text"] == reply["choices"][0]["text"]
        assert daemon.stop() == 0
