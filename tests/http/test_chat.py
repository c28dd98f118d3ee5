"""Chat completions through the official client."""

from typing import Any

import openai
import pytest

from tests.http import plain
from tests.http.conftest import Running
from tests.http.scripted import prompt_text

HELLO = [{"role": "user", "content": "the quick brown fox"}]
LONG = [{"role": "system", "content": "the lazy dog " * 20}, {"role": "user", "content": "the quick brown fox"}]


def ask(running: Running, **options: Any) -> Any:
    """One chat with defaults."""
    options = {"model": "any", "messages": HELLO, **options}
    return running.client().chat.completions.create(**options)


def test_a_whole_answer_has_text_usage_and_the_real_model_name(running: Running) -> None:
    """Another model's name is answered by the loaded one, which the answer names."""
    answer = ask(running, model="gpt-4o")
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny-model"
    assert answer.id == running.service.requests[0].request_id
    assert answer.usage.prompt_tokens == len(running.service.requests[0].tokens) // 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_is_there_when_it_is_zero(running: Running, stream: bool) -> None:
    """A cold answer says cached_tokens 0, streamed and not (B037)."""
    if stream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        usage = list(ask(running, **options))[-1].usage
    else:
        usage = ask(running).usage
    assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("first_streams", [False, True])
@pytest.mark.parametrize("second_streams", [False, True])
@pytest.mark.parametrize("end", ["stop", "length", "stop string"])
def test_streams_and_whole_answers_share_entries(
    running: Running, first_streams: bool, second_streams: bool, end: str
) -> None:
    """What one kind of request stores the other finds, however the first ended (B041)."""
    extra: dict[str, Any] = {"length": {"max_tokens": 1}, "stop string": {"stop": ["world"]}}.get(end, {})

    def cached(stream: bool) -> int:
        options: dict[str, Any] = {"messages": LONG, **extra}
        if not stream:
            return ask(running, **options).usage.prompt_tokens_details.cached_tokens
        chunks = list(ask(running, stream=True, stream_options={"include_usage": True}, **options))
        return chunks[-1].usage.prompt_tokens_details.cached_tokens

    assert cached(first_streams) == 0
    assert cached(second_streams) >= 16


def test_the_cache_header_names_the_source(running: Running) -> None:
    """A whole answer says in a header where its prefix came from."""
    body = {"messages": LONG}
    sources = [plain.post(f"{running.base}/v1/chat/completions", json=body).headers["x-mlxcel-cache"] for _ in range(2)]
    assert sources == ["cold", "memory"]


@pytest.mark.parametrize(
    "fields",
    [{"cache_prompt": False}, {"extra_body": {"cache_prompt": False}}],
    ids=["top level or flattened", "nested"],
)
def test_cache_prompt_false_neither_reads_nor_stores(running: Running, fields: dict[str, Any]) -> None:
    """The opt-out is read at the top level and inside a nested extra_body."""
    url = f"{running.base}/v1/chat/completions"
    usages = [plain.post(url, json={"messages": LONG, **fields}).json()["usage"] for _ in range(2)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 0]
    options = running.service.requests[-1].options
    assert (options.read, options.store) == (False, False)


def test_cache_fields_reach_the_service(running: Running) -> None:
    """TTL, salt, session key and the halves of the opt-out go on as asked; the salt only as a digest."""
    ask(
        running,
        user="u",
        extra_body={"cache_no_store": True, "cache_ttl_s": 60, "cache_salt": "pepper", "prompt_cache_key": "k"},
    )
    request = running.service.requests[0]
    assert (request.options.read, request.options.store, request.options.ttl_s) == (True, False, 60.0)
    assert request.scope.session_key == "k"
    assert request.scope.tenant_salt
    assert "pepper" not in request.scope.tenant_salt


def test_unknown_fields_do_not_reach_the_key(running: Running) -> None:
    """An unknown field is ignored: tokens, scope and options are those of a request without it."""
    ask(running)
    ask(running, extra_body={"colour": "blue", "metadata_x": {"a": 1}})
    first, second = running.service.requests
    assert (first.tokens, first.scope, first.options) == (second.tokens, second.scope, second.options)


def test_parts_of_text_equal_their_join(running: Running) -> None:
    """Text parts are joined with nothing between them (B109)."""
    ask(running, messages=[{"role": "user", "content": "ab"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask(running, messages=[{"role": "user", "content": parts}])
    assert running.service.requests[0].tokens == running.service.requests[1].tokens


def test_max_tokens_has_a_default_within_the_context(serve: Any) -> None:
    """Without a limit the default counts, but never more than the context leaves."""
    running = serve(context_tokens=40)
    answer = ask(running)
    request = running.service.requests[0]
    assert request.max_tokens == 40 - answer.usage.prompt_tokens
    ask(running, max_completion_tokens=3)
    assert running.service.requests[1].max_tokens == 3


def test_a_prompt_that_fills_the_context_is_refused(serve: Any) -> None:
    """One token below the context is answered with one token; at the context it is a 400 with numbers (B110)."""
    running = serve(context_tokens=512)
    size = ask(running).usage.prompt_tokens
    exact = serve(context_tokens=size)
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(exact, stream=True)
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.param == "messages"
    assert f"maximum context length is {size} tokens. However, your messages resulted in {size} tokens" in str(
        refusal.value
    )
    assert exact.service.requests == []
    answer = ask(serve(context_tokens=size + 1))
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 1)


def test_stop_strings_cut_streams_and_whole_answers_alike(running: Running) -> None:
    """A stop string over a token border never leaks, streamed and not (B108)."""
    running.service.answer = lambda request: "alpha beta gamma delta"
    whole = ask(running, stop=["beta gamma"])
    parts = [chunk.choices[0].delta.content or "" for chunk in ask(running, stop=["beta gamma"], stream=True)]
    assert whole.choices[0].message.content == "".join(parts) == "alpha "
    assert whole.choices[0].finish_reason == "stop"


def test_logprobs_name_tokens_and_alternatives(running: Running) -> None:
    """Each token has its text, its bytes and the asked number of alternatives; streams carry the same entries."""
    whole = ask(running, logprobs=True, top_logprobs=2)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == "hello world"
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    streamed = [
        entry
        for chunk in ask(running, logprobs=True, top_logprobs=2, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in entries]


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Ulm",  "n": 1}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_parsed_with_their_own_bytes(running: Running, stream: bool) -> None:
    """A Hermes call becomes a tool call, its arguments as the model wrote them; the finish reason says so once."""
    running.service.answer = lambda request: f"hello {CALL}\n{CALL}"
    if stream:
        chunks = list(ask(running, tools=[WEATHER], stream=True))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert [call.index for call in calls] == [0, 1]
    else:
        choice = ask(running, tools=[WEATHER]).choices[0]
        calls, reasons, text = choice.message.tool_calls, [choice.finish_reason], choice.message.content
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", '{"city":"Ulm",  "n": 1}')
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert reasons == ["tool_calls"]
    assert text.strip() == "hello"


def test_arguments_sent_back_are_rendered_unchanged(running: Running) -> None:
    """The next turn's prompt holds the argument string byte for byte (B044)."""
    arguments = '{"path":"a","edits":[{"new":"x","old":"y"}],"t":1.50}'
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    ask(
        running,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
    )
    assert f'"arguments": {arguments}}}' in prompt_text(running.service, running.service.requests[0])


def test_tool_choice_none_offers_and_parses_no_tools(running: Running) -> None:
    """With "none" the prompt has no tools and text that looks like a call stays text (B105)."""
    running.service.answer = lambda request: CALL
    ask(running)
    answer = ask(running, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == CALL
    plain, none = running.service.requests
    assert plain.tokens == none.tokens


def test_seed_bias_and_penalties_reach_the_sampler(running: Running) -> None:
    """Sampling fields go on as they were sent."""
    ask(running, seed=7, logit_bias={"5": -100}, presence_penalty=0.5, frequency_penalty=-1, temperature=0, top_p=0.5)
    params = running.service.requests[0].params
    assert (params.seed, params.logit_bias, params.presence_penalty) == (7, {5: -100.0}, 0.5)
    assert (params.frequency_penalty, params.temperature, params.top_p) == (-1.0, 0.0, 0.5)


def test_a_safe_request_id_is_kept(running: Running) -> None:
    """x-request-id names the generation when it is safe; an unsafe one is replaced."""
    url = f"{running.base}/v1/chat/completions"
    kept = plain.post(url, json={"messages": HELLO}, headers={"x-request-id": "job-17:a"})
    replaced = plain.post(url, json={"messages": HELLO}, headers={"x-request-id": "x" * 200})
    assert kept.json()["id"] == kept.headers["x-request-id"] == "job-17:a"
    assert replaced.json()["id"].startswith("chatcmpl-")


def test_boundaries_lie_inside_the_prompt_and_agree_with_the_next_turn(running: Running) -> None:
    """The turn boundary is a prefix of the next turn's tokens; the system boundary of another user's chat (B043)."""
    ask(running, messages=LONG)
    ask(running, messages=[*LONG, {"role": "assistant", "content": "hello world"}, *HELLO])
    ask(running, messages=[LONG[0], {"role": "user", "content": "alpha"}])
    first, second, third = running.service.requests
    system, turn = first.boundaries[0], first.boundaries[-1]
    assert 0 < system < turn < len(first.tokens) // 4
    assert second.tokens.startswith(first.tokens[: 4 * turn])
    assert third.tokens.startswith(first.tokens[: 4 * system])
    assert system in second.boundaries
