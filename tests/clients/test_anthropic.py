"""Anthropic's own client against the real daemon: answers, events, tools, thinking, usage, marks and errors."""

from typing import Any

import anthropic
import pytest

from tests.clients.conftest import Forcing

TOOLS: Any = [
    {
        "name": "read_file",
        "description": "Read a file",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>'
SYSTEM = "You read files and answer in one word. " * 6


def ask(daemon: Forcing, text: str = "", **more: Any) -> Any:
    """Send a short conversation; `text` forces the answer."""
    body = {"model": "any", "max_tokens": 200, "messages": [{"role": "user", "content": "the quick fox"}], **more}
    return daemon.anthropic.messages.create(**body, extra_headers=daemon.saying(text) if text else None)


def total_input(usage: Any) -> int:
    """Return the prompt's tokens: the three figures are disjoint."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_an_answer_has_text_and_an_end(daemon: Forcing) -> None:
    """A plain answer is one text block with end_turn; a cut one says max_tokens."""
    answer = ask(daemon, "hello world")
    assert [(block.type, block.text) for block in answer.content] == [("text", "hello world")]
    assert (answer.type, answer.role, answer.stop_reason, answer.stop_sequence) == (
        "message",
        "assistant",
        "end_turn",
        None,
    )
    assert ask(daemon, "hello world", max_tokens=2).stop_reason == "max_tokens"


def test_an_empty_stop_sequence_is_refused_by_its_name(daemon: Forcing) -> None:
    """The refusal names the field as this API calls it."""
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}], "stop_sequences": [""]}
    answer = daemon.http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("stop_sequences: ")


def test_stop_sequences_are_named(daemon: Forcing) -> None:
    """The answer ends before the sequence, and the reply says which it was."""
    answer = ask(daemon, "one two three", stop_sequences=["thr", "zzz"])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one two ", "stop_sequence", "thr")


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_text_and_tools_are_blocks(daemon: Forcing, streamed: bool) -> None:
    """Thinking, text and a call come as three blocks in order, streamed and not."""
    text = f"<think>\nlook first\n</think>\n\nI read it.\n{CALL}"
    if streamed:
        with daemon.anthropic.messages.stream(
            model="any",
            max_tokens=200,
            messages=[{"role": "user", "content": "read"}],
            tools=TOOLS,
            extra_headers=daemon.saying(text),
        ) as stream:
            kinds = [event.type for event in stream if event.type.startswith(("message", "content_block_st"))]
            answer: Any = stream.get_final_message()
        blocks = ["content_block_start", "content_block_stop"] * 3
        assert kinds == ["message_start", *blocks, "message_delta", "message_stop"]
    else:
        answer = ask(daemon, text, tools=TOOLS)
    thinking, words, call = answer.content
    assert (thinking.type, thinking.thinking) == ("thinking", "look first")
    assert thinking.signature
    assert (words.type, words.text) == ("text", "I read it.")
    assert (call.type, call.name, call.input) == ("tool_use", "read_file", {"path": "a.txt"})
    assert answer.stop_reason == "tool_use"


def test_raw_events_follow_the_protocol(daemon: Forcing) -> None:
    """Every event carries its name in data too; deltas fall between start and stop of the block with their index."""
    events: list[Any] = []
    stream = daemon.anthropic.messages.create(
        model="any",
        max_tokens=50,
        messages=[{"role": "user", "content": "go"}],
        stream=True,
        extra_headers=daemon.saying("<think>a</think>b"),
    )
    events = list(stream)
    open_at = None
    for event in events:
        if event.type == "content_block_start":
            assert open_at is None
            open_at = event.index
        elif event.type == "content_block_delta":
            assert event.index == open_at
        elif event.type == "content_block_stop":
            assert event.index == open_at
            open_at = None
    assert [e.delta.type for e in events if e.type == "content_block_delta"][-2:] == ["signature_delta", "text_delta"]
    assert events[-2].usage.output_tokens > 0
    assert total_input(events[0].message.usage) == total_input(events[-2].usage)


def test_a_tool_loop_reuses_its_history(daemon: Forcing) -> None:
    """The turn with the tool's result reads the first turn from the cache, and the sum of usage is the prompt."""
    system = SYSTEM + "loop"
    first = ask(daemon, CALL, system=system, tools=TOOLS)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": [{"type": "text", "text": "42"}]}
    turns = [
        {"role": "user", "content": "the quick fox"},
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    second = ask(daemon, system=system, tools=TOOLS, messages=turns, max_tokens=4)
    counted = daemon.anthropic.messages.count_tokens(model="any", system=system, tools=TOOLS, messages=turns)  # type: ignore[arg-type]
    assert total_input(second.usage) == counted.input_tokens
    assert second.usage.cache_read_input_tokens >= total_input(first.usage) // 16 * 16
    assert second.usage.cache_creation_input_tokens == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_marks_show_what_was_created_and_then_read(daemon: Forcing, streamed: bool) -> None:
    """A marked system prompt is created the first time and read the second, in the figures that clients show."""
    block = {
        "type": "text",
        "text": f"{SYSTEM}{streamed}"[::-1],
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }

    def usage(question: str) -> Any:
        turns = [{"role": "user", "content": question}]
        if not streamed:
            return ask(daemon, "ok", system=[block], messages=turns).usage
        body: Any = {"model": "any", "max_tokens": 9, "system": [block], "messages": turns}
        with daemon.anthropic.messages.stream(**body, extra_headers=daemon.saying("ok")) as stream:
            started = next(event for event in stream if event.type == "message_start").message.usage
            ended = stream.get_final_message().usage
        assert started.cache_read_input_tokens == ended.cache_read_input_tokens
        return ended

    first, second = usage("one"), usage("two more words")
    assert (first.cache_read_input_tokens, second.cache_creation_input_tokens >= 0) == (0, True)
    assert first.cache_creation_input_tokens > 40
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens // 16 * 16
    assert min(first.input_tokens, second.input_tokens) >= 1


def test_thinking_can_be_switched_off(daemon: Forcing) -> None:
    """thinking disabled reaches the template, which then writes the empty block itself."""
    plain = daemon.anthropic.messages.count_tokens(model="any", messages=[{"role": "user", "content": "a"}])
    without = daemon.anthropic.messages.count_tokens(
        model="any", messages=[{"role": "user", "content": "a"}], thinking={"type": "disabled"}
    )
    assert without.input_tokens > plain.input_tokens


def test_one_call_where_one_is_asked(daemon: Forcing) -> None:
    """disable_parallel_tool_use ends the answer with its first call."""
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(daemon, CALL + "\n" + CALL, tools=TOOLS).content) == 2
    assert len(ask(daemon, CALL + "\n" + CALL, tools=TOOLS, tool_choice=choice).content) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "other"}}]}, "system[0].cache_control"),
    (
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5},
        "system[4].cache_control",
    ),
    ({"messages": [{"role": "user", "content": "x " * 20000}]}, "messages"),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("change", "field"), BAD, ids=[field for _, field in BAD])
def test_refusals_have_anthropics_shape(daemon: Forcing, change: dict[str, Any], field: str, streamed: bool) -> None:
    """What can't be honoured is a 400 of type invalid_request_error that names the field, also for a stream."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(daemon, stream=streamed, extra_body=change)  # newer clients know no field for some of these
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["error"]["message"].startswith(f"{field}: ")
