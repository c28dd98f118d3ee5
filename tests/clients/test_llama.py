"""llama-server's native completion against the real daemon."""

import json
from typing import Any

import pytest

from tests.clients.conftest import Forcing

PROMPT = "the quick brown fox jumps over the lazy dog while five wizards box quickly and the old house stands. " * 3


def send(daemon: Forcing, said: str = "", path: str = "/completion", **more: Any) -> dict[str, Any]:
    """POST a completion; returns the body."""
    body = {"prompt": PROMPT, "n_predict": 20, "temperature": 0, **more}
    answer = daemon.http.post(path, json=body, headers=daemon.saying(said) if said else None)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def test_timings_split_the_prompt(daemon: Forcing) -> None:
    """tokens_cached is timings.cache_n, and cache_n + prompt_n is the prompt, cold and warm, on both names of the route."""
    cold, warm = send(daemon, "one two"), send(daemon, "one two", "/completions")
    for reply in (cold, warm):
        assert reply["tokens_cached"] == reply["timings"]["cache_n"]
        assert reply["timings"]["cache_n"] + reply["timings"]["prompt_n"] == reply["tokens_evaluated"]
        assert (reply["content"], reply["stop"], reply["stop_type"]) == ("one two", True, "eos")
    assert cold["tokens_cached"] == 0
    assert warm["tokens_cached"] >= 32


def test_ways_to_stop_are_told(daemon: Forcing) -> None:
    """A stop word is named and a limit is a limit; ids come when asked for; -1 goes to the model's own end."""
    word = send(daemon, "one two three", stop=["two"])
    assert (word["content"], word["stop_type"], word["stopping_word"]) == ("one ", "word", "two")
    cut = send(daemon, "one two three", n_predict=1, return_tokens=True)
    assert (cut["stop_type"], len(cut["tokens"]), cut["tokens_predicted"]) == ("limit", 1, 1)
    assert send(daemon, "one", n_predict=-1)["stop_type"] == "eos"


def test_frames_join_to_the_whole(daemon: Forcing) -> None:
    """A stream's frames hold the text once; the last is the whole object without text, and no [DONE] follows."""
    whole = send(daemon, "one two three")
    body = {"prompt": PROMPT, "stream": True, "n_probs": 2}
    with daemon.http.stream("POST", "/completion", json=body, headers=daemon.saying("one two three")) as answer:
        frames = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]
    assert "".join(frame["content"] for frame in frames) == whole["content"]
    assert [frame["stop"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert set(whole) <= set(frames[-1])
    assert len(frames[0]["completion_probabilities"][0]["top_logprobs"]) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"n": 2}, "n"),
        ({"return_progress": True}, "return_progress"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"json_schema": {}}, "json_schema"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [["a", 1]]}, "logit_bias"),
        ({"n_probs": 99}, "n_probs"),
        ({"prompt": {}}, "prompt"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_named(daemon: Forcing, change: dict[str, Any], field: str) -> None:
    """A field that can't be honoured is a 400 that names it."""
    answer = daemon.http.post("/completion", json={"prompt": PROMPT, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
