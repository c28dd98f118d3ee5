"""The event stream, read strictly, and what happens when a client leaves or the engine fails."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from mlxcel.http.settings import HttpSettings
from mlxcel.ports import Failed
from tests.http import plain
from tests.http.conftest import Running

USER = [{"role": "user", "content": "the quick brown fox"}]


def events(text: str) -> tuple[list[Any], list[str]]:
    """Parse an event stream strictly; returns the data of each event and the comments."""
    assert text.endswith("\n\n")
    data, comments = [], []
    for block in text.removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        assert len(lines) == 1, "one line an event"
        if lines[0].startswith(": "):
            comments.append(lines[0][2:])
        else:
            assert lines[0].startswith("data: ")
            payload = lines[0].removeprefix("data: ")
            data.append(payload if payload == "[DONE]" else json.loads(payload))
    return data, comments


def stream(running: Running, path: str = "/v1/chat/completions", **fields: Any) -> tuple[list[Any], list[str]]:
    """One stream, parsed."""
    prompt = {"prompt": "the quick"} if path == "/v1/completions" else {"messages": USER}
    answer = plain.post(running.base + path, json={"stream": True, **prompt, **fields})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text)


@pytest.mark.parametrize("include", [True, False, None])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_order_of_chunks(running: Running, path: str, include: bool | None) -> None:
    """Role, text, one finish_reason, usage only if asked for and then last, [DONE]; one id throughout (B038, B104)."""
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    data, comments = stream(running, path, **options)
    assert data.pop() == "[DONE]"
    assert any(comment.startswith("prefill ") for comment in comments)
    if include:
        usage = data.pop()
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert all(chunk["usage"] is None for chunk in data)
    assert all("usage" not in chunk for chunk in data) or include
    assert len({chunk["id"] for chunk in data}) == 1
    choices = [chunk["choices"][0] for chunk in data]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    if path == "/v1/chat/completions":
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello world"
        assert choices[-1]["delta"] == {}
    else:
        assert "".join(choice["text"] for choice in choices) == "hello world"


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until another thread has done its part."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never happened")


def open_request(running: Running, stream: bool) -> socket.socket:
    """Send a chat and return the open socket."""
    body = json.dumps({"messages": USER, "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", running.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    return connection


@pytest.mark.parametrize("streams", [False, True])
def test_leaving_during_prefill_cancels_at_once(running: Running, streams: bool) -> None:
    """A client that closes in the middle of prefill is cancelled, and the next request is served (B031, B032)."""
    running.service.hold.clear()
    connection = open_request(running, streams)
    wait_for(lambda: len(running.service.requests) == 1)
    connection.close()
    wait_for(lambda: running.service.cancelled == [running.service.requests[0].request_id])
    wait_for(lambda: len(running.service.ended) == 1)
    running.service.hold.set()
    assert plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER}).status_code == 200


def test_leaving_during_decode_cancels(running: Running) -> None:
    """A client that closes after some chunks is cancelled once the server notices (B030)."""
    running.service.answer = lambda request: "alpha beta gamma " * 50
    running.service.step_s = 0.01
    connection = open_request(running, stream=True)
    received = b""
    while b"alpha" not in received:
        received += connection.recv(4096)
    connection.close()
    wait_for(lambda: len(running.service.ended) == 1)
    assert running.service.cancelled[0] == running.service.requests[0].request_id


def test_a_finished_answer_is_not_cancelled(running: Running) -> None:
    """Neither a whole answer nor a stream that ended well is cancelled afterwards."""
    plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER})
    stream(running)
    assert running.service.cancelled == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("kind", "status"), [("engine_fault", 500), ("out_of_memory", 503), ("shutting_down", 503)])
def test_a_fault_before_the_first_token_has_its_status(running: Running, streams: bool, kind: str, status: int) -> None:
    """An early fault is an HTTP error in OpenAI's shape, also for streams."""
    running.service.fault = Failed(kind, "It went wrong.")
    running.service.hold.clear()
    body = {"messages": USER, "stream": streams}
    if streams:
        # Progress opens the stream, so here the fault arrives as data, and [DONE] does not follow.
        running.service.hold.set()
        answer = plain.post(f"{running.base}/v1/chat/completions", json=body)
        data, _ = events(answer.text) if answer.status_code == 200 else ([answer.json()], [])
        assert data[-1]["error"]["message"] == "It went wrong."
        return
    running.service.hold.set()
    answer = plain.post(f"{running.base}/v1/chat/completions", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == kind


@pytest.mark.parametrize("streams", [False, True])
def test_a_full_queue_is_a_429(running: Running, streams: bool) -> None:
    """A full queue says when to come back, streamed or not."""
    running.service.full = True
    answer = plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER, "stream": streams})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


def test_waiting_streams_get_pings(serve: Any) -> None:
    """While nothing happens a comment keeps the connection alive."""
    running = serve(HttpSettings(ping_interval_s=0.02, first_item_wait_s=0.02))
    running.service.hold.clear()
    with plain.stream("POST", f"{running.base}/v1/chat/completions", json={"messages": USER, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line == ": ping") == ": ping"
        running.service.hold.set()
        assert "data: [DONE]" in list(lines)
