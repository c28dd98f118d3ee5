"""A client for any OpenAI-compatible server that takes times as it goes: one connection, no library in between."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

IDLE_S = 2.0  # servers close connections that idle; uvicorn after 5 s


class Timing(msgspec.Struct):
    """One request as its client saw it. `ttft_s`: until the first event with content (or the end of an answer without)."""

    ttft_s: float
    total_s: float
    events: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    status: int = 200
    text: str = ""
    gaps_s: list[float] = []


class Client:
    """Keeps one connection open. Not for two threads at once."""

    def __init__(self, url: str, timeout_s: float = 900.0) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
        self._idle_since_s = 0.0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ready(self) -> None:
        """Connect before the clock starts: anew where the server may have closed an idle connection."""
        if time.perf_counter() - self._idle_since_s > IDLE_S:
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()

    def get(self, path: str) -> Any:
        """GET a JSON answer."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """POST and return the JSON answer."""
        return self._exchange("POST", path, body)

    def _exchange(self, method: str, path: str, body: Any) -> Any:
        encoded = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._ready()
        self._connection.request(method, path, encoded, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        self._idle_since_s = time.perf_counter()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300].decode(errors='replace')}")
        return json.loads(data) if data else None

    def complete(self, prompt: list[int] | str, max_tokens: int = 1, **more: Any) -> Timing:
        """Stream /v1/completions, greedy."""
        return self.stream("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **more})

    def chat(self, messages: list[dict[str, str]], max_tokens: int = 1, **more: Any) -> Timing:
        """Stream /v1/chat/completions, greedy."""
        return self.stream("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **more})

    def stream(self, path: str, body: dict[str, Any]) -> Timing:
        """POST a streaming request and read it to its end. A refusal comes back as a Timing with its status."""
        options = {"include_usage": True}
        body = {"model": "default_model", "temperature": 0, "stream": True, "stream_options": options, **body}
        encoded = json.dumps(body).encode()
        self._ready()
        started = time.perf_counter()
        self._connection.request("POST", path, encoded, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        timing = Timing(0.0, 0.0, 0, status=answer.status)
        if answer.status != 200:
            answer.read()
            self._idle_since_s = time.perf_counter()
            timing.ttft_s = timing.total_s = time.perf_counter() - started
            return timing
        last, texts = started, []
        while line := answer.readline():
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            choice = next(iter(event.get("choices") or []), None)
            text = _text_of(choice)
            if text or (choice and choice.get("finish_reason")):
                if not timing.events:
                    timing.ttft_s = now - started
                elif text:
                    timing.gaps_s.append(now - last)
                timing.events += 1
                last = now
                texts.append(text)
            _take_usage(timing, event.get("usage"))
        self._idle_since_s = time.perf_counter()
        timing.total_s = self._idle_since_s - started
        timing.ttft_s = timing.ttft_s or timing.total_s
        timing.text = "".join(texts)
        return timing


def _text_of(choice: Any) -> str:
    if not choice:
        return ""
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning") or ""


def _take_usage(timing: Timing, usage: Any) -> None:
    if usage:
        timing.prompt_tokens = usage.get("prompt_tokens", 0)
        timing.completion_tokens = usage.get("completion_tokens", 0)
        timing.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
