"""OpenAI's own client against the real daemon: chats, tools, reasoning, streams, completions, and an agent's session."""

import json
from typing import Any

import openai
import pytest

from tests.clients.conftest import Forcing

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{n}",
            "description": f"Does thing number {n} with a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "edits": {"type": "array"}}},
        },
    }
    for n in range(6)
]
ARGUMENTS = '{"path": "a", "edits": [{"new":"x", "old": "y"}]}'
CALL = f'<tool_call>\n{{"name": "tool_1", "arguments": {ARGUMENTS}}}\n</tool_call>'


def ask(daemon: Forcing, text: str = "", **more: Any) -> Any:
    """Send a short chat; `text` forces the answer."""
    body = {"model": "any", "max_tokens": 600, "messages": [{"role": "user", "content": "the quick fox"}], **more}
    return daemon.openai.chat.completions.create(**body, extra_headers=daemon.saying(text) if text else None)


def collect(stream: Any) -> dict[str, Any]:
    """Join a stream's chunks as a client does; checks what every stream must keep."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "ends": [], "usage": [], "ids": set()}
    for chunk in stream:
        found["ids"].add(chunk.id)
        if not chunk.choices:
            assert found["ends"], "usage comes after the end"
            found["usage"].append(chunk.usage)
            continue
        choice = chunk.choices[0]
        found["content"] += choice.delta.content or ""
        found["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        found["calls"] += choice.delta.tool_calls or []
        if choice.finish_reason:
            found["ends"].append(choice.finish_reason)
    assert len(found["ids"]) == 1
    assert len(found["ends"]) == 1
    return found


def test_streamed_and_whole_answers_agree(daemon: Forcing) -> None:
    """Reasoning, text and two calls are the same streamed and not; arguments are the model's own bytes."""
    text = f"<think>\nhm, two\n</think>\n\nNow both.\n{CALL}\n{CALL}"
    message = ask(daemon, text, tools=TOOLS).choices[0].message
    whole = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    streamed = collect(ask(daemon, text, tools=TOOLS, stream=True, stream_options={"include_usage": True}))
    assert whole == [("tool_1", ARGUMENTS)] * 2
    assert [(call.function.name, call.function.arguments) for call in streamed["calls"]] == whole
    assert [call.index for call in streamed["calls"]] == [0, 1]
    assert (message.content, message.reasoning_content) == (streamed["content"], streamed["reasoning"])
    assert (streamed["content"], streamed["reasoning"], streamed["ends"]) == ("Now both.", "hm, two", ["tool_calls"])
    assert len(streamed["usage"]) == 1
    assert streamed["usage"][0].prompt_tokens_details.cached_tokens > 0


def test_parallel_calls_can_be_switched_off(daemon: Forcing) -> None:
    """parallel_tool_calls false gives one call of an answer that holds two."""
    message = ask(daemon, CALL + CALL, tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert len(message.tool_calls) == 1


def test_tools_are_not_offered_with_choice_none(daemon: Forcing) -> None:
    """With tool_choice none the prompt has no tools and a call is plain text (B105)."""
    offered = ask(daemon, CALL, tools=TOOLS)
    none = ask(daemon, CALL, tools=TOOLS, tool_choice="none")
    assert none.usage.prompt_tokens < offered.usage.prompt_tokens
    assert (none.choices[0].message.tool_calls, none.choices[0].finish_reason) == (None, "stop")
    for choice in ("required", "banana", {"type": "function", "function": {"name": "zzz"}}):
        with pytest.raises(openai.BadRequestError):
            ask(daemon, tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("end", ["stop", "length", "stop_string", "tool_call"])
def test_every_way_to_end_stores_and_reads(daemon: Forcing, route: str, streamed: bool, end: str) -> None:
    """In each cell of route, streaming and end the second request hits what the first stored (B041)."""
    said = {"stop": "fine", "length": "fine " * 9, "stop_string": "fine HALT x", "tool_call": CALL}[end]
    question = f"{end} {route} {streamed} " + "tell me about the quick brown fox " * 3
    limits: dict[str, Any] = {"max_tokens": 3 if end == "length" else 60, "stop": ["HALT"]}

    def send(text: str) -> int:
        head = daemon.saying(said)
        if route == "completions":
            made: Any = daemon.openai.completions
            body = {"model": "m", "prompt": text, **limits}
        else:
            made = daemon.openai.chat.completions
            tools = {"tools": TOOLS} if end == "tool_call" else {}
            body = {"model": "m", "messages": [{"role": "user", "content": text}], **limits, **tools}
        if not streamed:
            return int(made.create(**body, extra_headers=head).usage.prompt_tokens_details.cached_tokens)
        chunks = list(made.create(**body, extra_headers=head, stream=True, stream_options={"include_usage": True}))
        return int(chunks[-1].usage.prompt_tokens_details.cached_tokens)

    first = send(question)
    assert send(question + " and more") >= max(32, first + 1)


def test_an_agents_session_computes_only_what_is_new(daemon: Forcing) -> None:
    """In 30 steps with tools, results and one edit of history, all but the tokens after the shared prefix are cached."""
    tools = TOOLS * 1
    system = {"role": "system", "content": "You are an agent that works step by step. " * 4}
    turns: list[Any] = [system, {"role": "user", "content": "begin"}]
    known: list[list[int]] = []
    for step in range(30):
        if step == 15:
            turns = [*turns[:-9], {"role": "user", "content": "no, otherwise"}]
        body = {"messages": turns, "tools": tools}
        fed = daemon.http.post("/v1/chat/completions/render", json=body).json()["token_ids"]
        answer = ask(daemon, CALL if step % 3 else "I see.", messages=turns, tools=tools)
        shared = max((common(fed, other) for other in known), default=0)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached >= min(shared, len(fed) - 1) // 16 * 16
        known.append(fed)
        message = answer.choices[0].message
        turns.append(message.model_dump(exclude_none=True))
        if message.tool_calls:
            turns.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": json.dumps({"n": step})})
        else:
            turns.append({"role": "user", "content": f"go on {step}"})
    stats = daemon.stats()
    assert (stats["leases"], stats["requests_running"]) == (0, 0)


def common(left: list[int], right: list[int]) -> int:
    """Return how many tokens two prompts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_context_is_refused_with_numbers_before_any_header(daemon: Forcing) -> None:
    """A prompt of the context's length or more is a 400 with code context_length_exceeded, streamed too (B110)."""
    size = daemon.http.get("/v1/models").json()["data"][0]["meta"]["n_ctx"]
    for length in (size, size + 1, 10 * size):
        for streamed in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                daemon.openai.completions.create(model="m", prompt=[5] * length, max_tokens=1, stream=streamed)
            assert caught.value.code == "context_length_exceeded"
            assert str(size) in caught.value.message
    last = daemon.openai.completions.create(model="m", prompt=[5] * (size - 1), max_tokens=50)
    assert (last.usage.completion_tokens, last.choices[0].finish_reason) == (1, "length")
