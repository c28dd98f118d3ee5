"""Conversations over HTTP with models whose state can't be cut by tokens: later turns go on from captured states."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.e2e.daemon import Daemon, cached
from tests.tinymodels import BOS, EOS, tokenizer_json, write_tiny_model

KINDS = ("qwen3_next", "gemma3_text", "gemma4_text", "mamba2", "nemotron_h", "llama4", "gpt_oss")
QUICK = ("qwen3_next", "gemma4_text", "llama4")
SYSTEM = "You are a helpful assistant. Answer with one word. The old house stands alone while five wizards box quickly."
USERS = ("What is the capital of France?", "And what about the fox?", "Once upon a time?", "Read the words twice.")
CHUNK = ("--prefill-chunk-size", "16")  # smaller than every window
Tiny = Callable[[str], Path]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a function from a kind to a model directory."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_tiny_model(kind, tmp_path_factory.mktemp("models") / kind)
        return made[kind]

    return make


def chat(daemon: Daemon, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    """POST /v1/chat/completions, greedy."""
    body = {"messages": messages, "max_tokens": 16, "temperature": 0, "prompt_cache_key": "talk", **more}
    answer = daemon.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def said(reply: dict[str, Any]) -> str:
    """Return the text of a chat answer."""
    return reply["choices"][0]["message"]["content"] or ""


def talk(daemon: Daemon, warm: bool, turns: int = len(USERS)) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Hold a conversation; waits for each warm-up if `warm`. Returns replies and the last request's messages."""
    messages, replies = [{"role": "system", "content": SYSTEM}], []
    for number, text in enumerate(USERS[:turns]):
        messages.append({"role": "user", "content": text})
        replies.append(chat(daemon, messages))
        if number + 1 < turns:
            messages.append({"role": "assistant", "content": said(replies[-1])})
        if warm:
            wait_for(daemon, "snapshot_warmups_run", number + 1)
    return replies, messages


def wait_for(daemon: Daemon, figure: str, least: int) -> None:
    """Wait until a statistic has come up to `least`."""
    deadline = time.monotonic() + 20
    while daemon.stats()[figure] < least and time.monotonic() < deadline:
        time.sleep(0.02)
    assert daemon.stats()[figure] >= least


def new_tokens(text: str) -> int:
    """Return the tokens of one new user message with its marks and the header of the answer."""
    rendered = f"{BOS}user\n{text}{EOS}\n{BOS}assistant\n"
    return len(Tokenizer.from_str(tokenizer_json()).encode(rendered).ids)


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_only_the_new_message_is_prefilled(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    """From turn 2 on all but the new message is cached, answers are those of a cold run, and a restart keeps it."""
    with Daemon(tiny(kind), tmp_path / "data", *CHUNK) as daemon:
        replies, messages = talk(daemon, warm=True)
        for text, reply in zip(USERS[1:], replies[1:], strict=True):
            left = reply["usage"]["prompt_tokens"] - cached(reply)
            assert 0 < left <= new_tokens(text)
        assert said(replies[-1]) == said(chat(daemon, messages, cache_prompt=False))
        assert daemon.stats()["snapshot_warmups_skipped"] == 0
        daemon.flush()
        daemon.kill()
    with Daemon(tiny(kind), tmp_path / "data", *CHUNK) as daemon:
        messages += [{"role": "assistant", "content": said(replies[-1])}, {"role": "user", "content": "And now?"}]
        after = chat(daemon, messages)
        assert after["usage"]["prompt_tokens"] - cached(after) <= new_tokens("And now?")
        assert said(after) == said(chat(daemon, messages, cache_prompt=False))


def test_without_warmup_the_answer_is_prefilled_too(tiny: Tiny, tmp_path: Path) -> None:
    """MLXCEL_DISABLE_CACHE_WARMUP=1 leaves boundary snapshots: later turns hit, no warm-up runs."""
    env = {"MLXCEL_DISABLE_CACHE_WARMUP": "1"}
    with Daemon(tiny("qwen3_next"), tmp_path / "data", *CHUNK, env=env) as daemon:
        replies, _ = talk(daemon, warm=False)
        assert all(cached(reply) > 0 for reply in replies[1:])
        assert daemon.stats()["snapshot_warmups_run"] == 0


def test_without_boundaries_only_completions_are_captured(tiny: Tiny, tmp_path: Path) -> None:
    """MLXCEL_DISABLE_BOUNDARY_SNAPSHOT=1 takes away every planned capture and what is built on them."""
    env = {"MLXCEL_DISABLE_BOUNDARY_SNAPSHOT": "1"}
    with Daemon(tiny("qwen3_next"), tmp_path / "data", *CHUNK, env=env) as daemon:
        replies, _ = talk(daemon, warm=False)
        stats = daemon.stats()
        assert stats["snapshot_inserts"] == len(replies)
        assert stats["snapshot_warmups_run"] == 0


def test_a_new_session_starts_behind_a_shared_system_prompt(tiny: Tiny, tmp_path: Path) -> None:
    """The end of the system prompt is captured for all sessions; a rewritten first message finds it too."""
    with Daemon(tiny("mamba2"), tmp_path / "data", *CHUNK) as daemon:
        system = {"role": "system", "content": SYSTEM}
        chat(daemon, [system, {"role": "user", "content": USERS[0]}], prompt_cache_key="one")
        other = chat(daemon, [system, {"role": "user", "content": "Zebra?"}], prompt_cache_key="two")
        assert 32 < cached(other) < other["usage"]["prompt_tokens"] - 3
        third = chat(daemon, [system, {"role": "user", "content": "Who?"}], prompt_cache_key="two")
        assert cached(third) >= cached(other)


def test_snapshots_of_a_long_conversation_stay_few(tiny: Tiny, tmp_path: Path) -> None:
    """Thirty turns leave a handful of live snapshots, and a branch from an early turn is still right (B091)."""
    with Daemon(tiny("gemma3_text"), tmp_path / "data", *CHUNK) as daemon:
        messages = [{"role": "system", "content": SYSTEM}]
        counts = []
        for number in range(30):
            messages.append({"role": "user", "content": f"Number {number}?"})
            reply = chat(daemon, messages, max_tokens=4)
            messages.append({"role": "assistant", "content": said(reply)})
            counts.append(daemon.stats()["snapshot_entries"])
        assert max(counts) <= 9
        branch = [*messages[:8], {"role": "user", "content": "Something else?"}]
        assert said(chat(daemon, branch)) == said(chat(daemon, branch, cache_prompt=False))


def test_alternating_sessions_keep_their_snapshots(tiny: Tiny, tmp_path: Path) -> None:
    """Two sessions in turns: each finds its own history every time (B094)."""
    with Daemon(tiny("gemma3_text"), tmp_path / "data", *CHUNK) as daemon:
        talks = {name: [{"role": "system", "content": SYSTEM}] for name in ("A", "B")}
        before = dict.fromkeys(talks, 0)
        for number in range(10):
            for name, messages in talks.items():
                messages.append({"role": "user", "content": f"{name} asks {number}"})
                reply = chat(daemon, messages, prompt_cache_key=name, max_tokens=4)
                assert cached(reply) >= before[name]
                before[name] = reply["usage"]["prompt_tokens"] - new_tokens(f"{name} asks {number}")
                messages.append({"role": "assistant", "content": said(reply)})


def test_quantised_kv_is_reused_over_http(tmp_path: Path) -> None:
    """With --kv-bits the mode is told, prefixes hit, also after a restart; another mode starts cold (B013)."""
    wide = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = write_tiny_model("llama", tmp_path / "llama", overrides=wide)
    flags = ("--kv-bits", "8", "--kv-group-size", "32")
    ids = list(range(3, 83))
    with Daemon(model, tmp_path / "data", *flags) as daemon:
        first = daemon.complete(ids, 4)
        assert daemon.stats()["kv_cache_mode_effective"] == "q8g32"
        assert cached(daemon.complete(ids, 4)) == 64
        assert daemon.stop() == 0
    with Daemon(model, tmp_path / "data", *flags) as daemon:
        again = daemon.complete(ids, 4)
        assert cached(again) == 64
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert daemon.stop() == 0
    with Daemon(model, tmp_path / "data") as daemon:
        assert cached(daemon.complete(ids, 4)) == 0
