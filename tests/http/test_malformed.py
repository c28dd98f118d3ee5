"""Bad bodies: a 400 in OpenAI's shape that names the field, streamed or not, and nothing reaches the service."""

import json
import logging
import socket
import time
from typing import Any

import httpx
import pytest

from tests.http import plain
from tests.http.conftest import Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {"type": "function", "function": {"name": "b"}}

RAW_BODIES = {
    "empty": b"",
    "open": b"{",
    "trailing comma": b'{"messages":[],}',
    "list": b"[]",
    "null": b"null",
    "NaN": b"NaN",
    "NaN inside": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "huge number": b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    "200k brackets": b"[" * 200_000,
    "deep but closed": b'{"x":' + b"[" * 500 + b"]" * 500 + b',"messages":[{"role":"user","content":"x"}]}',
    "UTF-16": '{"messages":[]}'.encode("utf-16"),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    "bad UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "surrogate as UTF-8": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
}


def post(running: Running, path: str, body: Any) -> httpx.Response:
    """Send a body as raw bytes or JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plain.post(running.base + path, content=data, headers={"content-type": "application/json"})


def assert_refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Check status and shape; returns the error."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    assert "site-packages" not in answer.text
    return error


def test_malformed_json_is_a_400(running: Running) -> None:
    """Every malformed body is refused and the next good request is served (B100)."""
    for name, body in RAW_BODIES.items():
        for path in (CHAT, COMPLETIONS):
            error = assert_refused(post(running, path, body))
            assert error["type"] == "invalid_request_error", name
            assert (error["message"] == "The request body is empty; send JSON.") is (body == b"")
    assert running.service.requests == []
    assert post(running, CHAT, {"messages": [USER]}).status_code == 200


BAD_CHATS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [None]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": [IMAGE]}]}, "messages[1].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 9}, "presence_penalty"),
    ({"frequency_penalty": 9}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "banana"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": TOOL}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "zzz"}}}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"functions": []}, "functions"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"cache_ttl_s": -1}, "cache_ttl_s"),
    ({"cache_prompt": "no"}, "cache_prompt"),
    ({"seed": 2**70}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
]


def test_bad_chats_are_refused_by_field(running: Running) -> None:
    """Each bad field is a 400 that names it, for streams too: never a 200 with an error inside (B101, B105, B109)."""
    for fields, param in BAD_CHATS:
        for stream in ({}, {"stream": True}):
            body = {**({} if fields == {} else {"messages": [USER]}), **stream, **fields}
            error = assert_refused(post(running, CHAT, body))
            assert error["param"] == param, (fields, error)
    assert running.service.requests == []


BAD_COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**7]}, "prompt"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ({"prompt": "a", "n": 0}, "n"),
]


def test_bad_completions_are_refused_by_field(running: Running) -> None:
    """What completions can't honour is a 400, never accepted and ignored (B104)."""
    for fields, param in BAD_COMPLETIONS:
        error = assert_refused(post(running, COMPLETIONS, fields))
        assert error["param"] == param, (fields, error)
    assert running.service.requests == []


SURROGATE = "x \\ud83d y"


def test_lone_surrogates_are_refused_everywhere(running: Running) -> None:
    """A lone surrogate in any field is a 400; a pair is text (B102)."""
    bodies = [
        '{"messages":[{"role":"user","content":"%s"}]}',
        '{"messages":[{"role":"user","content":"hi","name":"%s"}]}',
        '{"messages":[{"role":"user","content":"hi"}],"stop":"%s"}',
        '{"messages":[{"role":"user","content":"hi"}],"user":"%s"}',
        '{"messages":[{"role":"user","content":"hi"}],"model":"%s"}',
        '{"messages":[{"role":"user","content":"hi"}],"prompt_cache_key":"%s"}',
        '{"messages":[{"role":"user","content":"hi"}],"unknown":"%s"}',
        '{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"%s"}}]}',
    ]
    for body in bodies:
        for text, status in ((SURROGATE, 400), ("\\ude00", 400), ("\\ud83d\\ude00", 200)):
            assert post(running, CHAT, (body % text).encode()).status_code == status, (body, text)


def test_limits_on_size_and_media_type(serve: Any) -> None:
    """An oversized body is a 413, a body that isn't JSON a 415, an unknown route a 404, a wrong method a 405."""
    from mlxcel.http.settings import HttpSettings

    running = serve(HttpSettings(max_body_bytes=1000))
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    too_large = "The request body is larger than the limit of 1000 bytes."
    assert assert_refused(post(running, CHAT, body), 413)["message"] == too_large
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert_refused(plain.post(running.base + CHAT, content=b"{}", headers=form), 415)
    assert_refused(plain.get(running.base + "/nothing"), 404)
    assert_refused(plain.get(running.base + CHAT), 405)


def test_a_client_that_leaves_inside_its_body_is_no_fault(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """It costs one debug line, no error and no traceback; the next request is served."""
    caplog.set_level(logging.DEBUG)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head.encode() + b'{"messages": [')
    for _ in range(200):
        if "left before its body was whole" in caplog.text:
            break
        time.sleep(0.02)
    assert post(running, CHAT, {"messages": [USER]}).status_code == 200
    ours = [record for record in caplog.records if record.name == "mlxcel.http"]
    assert [(record.levelname, record.exc_info) for record in ours] == [("DEBUG", None)]
    assert ours[0].getMessage() == f"POST {CHAT}: the client left before its body was whole"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_odd_but_valid_chats_are_served(running: Running) -> None:
    """Empty text, only a system message, two systems, a last assistant message, null options, model "": all defined."""
    system = {"role": "system", "content": "s"}
    for messages in (
        [{"role": "user", "content": ""}],
        [system],
        [system, system, USER],
        [USER, {**USER, "role": "assistant"}],
    ):
        assert post(running, CHAT, {"messages": messages, "model": "", "stop": None, "user": None}).status_code == 200
    assert post(running, CHAT, {"messages": [{"role": "developer", "content": "d"}, USER]}).status_code == 200
