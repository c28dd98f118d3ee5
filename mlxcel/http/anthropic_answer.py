"""An answer as Anthropic's content blocks, whole or as events in the order that its clients expect."""

import hashlib
import json
from typing import Any

from mlxcel.chat.output import Content, OutputParser, Piece, Reasoning
from mlxcel.chat.tool_formats import ToolCall
from mlxcel.http.errors import ApiError
from mlxcel.http.generation import progress_comment
from mlxcel.http.sse import EventWriter, named_event
from mlxcel.ports import Delta, Finished, Progress


def usage_split(prompt_tokens: int, cached_tokens: int, marked_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Return usage whose three input figures add up to the prompt.

    As in Anthropic's API only what the client marked counts as created (`marked_tokens`: end of the last mark, 0 for
    none); what the server keeps of its own accord is plain input the first time and read from the cache after that.
    """
    created = max(0, marked_tokens - cached_tokens)
    return {
        "input_tokens": prompt_tokens - cached_tokens - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


def stop_reason(finished: Finished, calls: int) -> str:
    """Return Anthropic's word for how the answer ended."""
    if finished.finish_reason == "length":
        return "max_tokens"
    if calls:
        return "tool_use"
    return "stop_sequence" if finished.stop_string else "end_turn"


def tool_block(request_id: str, index: int, call: ToolCall) -> dict[str, Any]:
    """Return the start of a tool_use block."""
    return {"type": "tool_use", "id": f"toolu_{request_id[-24:]}_{index}", "name": call.name, "input": {}}


def _input(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object: the parser lets nothing else through, and an empty text means none."""
    given = json.loads(call.arguments or "{}")
    return given if isinstance(given, dict) else {"value": given}


def _signature(thinking: str) -> str:
    """Clients hand thinking back only with a signature. Nothing here checks it."""
    return hashlib.blake2b(thinking.encode(), digest_size=12).hexdigest()


def _kind(piece: Piece) -> str:
    return "thinking" if isinstance(piece, Reasoning) else "text" if isinstance(piece, Content) else "tool_use"


class MessageAnswer:
    """Collects a whole answer."""

    def __init__(self, head: dict[str, Any], parser: OutputParser, marked_tokens: int) -> None:
        self._head = head
        self._parser = parser
        self._marked_tokens = marked_tokens
        self._pieces: list[Piece] = []

    def delta(self, item: Delta) -> None:
        """Take text that became certain."""
        self._pieces += self._parser.push(item.text)

    def answer(self, item: Finished) -> dict[str, Any]:
        """Return the body."""
        self._pieces += self._parser.finish()
        return {
            **self._head,
            "content": self._blocks(),
            "stop_reason": stop_reason(item, self._parser.calls),
            "stop_sequence": item.stop_string or None,
            "usage": usage_split(item.prompt_tokens, item.cached_tokens, self._marked_tokens, item.completion_tokens),
        }

    def _blocks(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        calls = 0
        for piece in self._pieces:
            kind = _kind(piece)
            if isinstance(piece, ToolCall):
                blocks.append({**tool_block(self._head["id"], calls, piece), "input": _input(piece)})
                calls += 1
            elif blocks and blocks[-1]["type"] == kind:
                blocks[-1][kind] += piece.text
            else:
                blocks.append({"type": kind, kind: piece.text})
        for block in blocks:
            if block["type"] == "thinking":
                block["signature"] = _signature(block["thinking"])
        return blocks


class MessageWriter(EventWriter):
    """Writes an answer as events: message_start, blocks one after the other, message_delta, message_stop."""

    def __init__(self, head: dict[str, Any], parser: OutputParser, prompt_tokens: int, marked_tokens: int) -> None:
        self._head = head
        self._parser = parser
        self._prompt_tokens = prompt_tokens
        self._marked_tokens = marked_tokens
        self._cached_tokens = 0
        self._begun = False
        self._open = ""  # kind of the open block
        self._index = -1
        self._calls = 0
        self._thought = ""

    def progress(self, item: Progress) -> list[bytes]:
        """Note how much came from the cache: message_start tells it."""
        self._cached_tokens = item.cached_tokens
        return [progress_comment(item)]

    def delta(self, item: Delta) -> list[bytes]:
        """Return the events of text that became certain."""
        return [*self._start(), *self._events(self._parser.push(item.text))]

    def finished(self, item: Finished) -> list[bytes]:
        """Return the closing events with the exact usage."""
        events = [*self._start(), *self._events(self._parser.finish()), *self._close()]
        usage = usage_split(item.prompt_tokens, item.cached_tokens, self._marked_tokens, item.completion_tokens)
        end = {"stop_reason": stop_reason(item, self._parser.calls), "stop_sequence": item.stop_string or None}
        events.append(named_event("message_delta", {"type": "message_delta", "delta": end, "usage": usage}))
        return [*events, named_event("message_stop", {"type": "message_stop"})]

    def failed(self, fault: ApiError) -> list[bytes]:
        """Return the error event; no message_stop follows."""
        return [named_event("error", fault.anthropic_body())]

    def _start(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        usage = usage_split(self._prompt_tokens, self._cached_tokens, self._marked_tokens, 0)
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [named_event("message_start", {"type": "message_start", "message": message})]

    def _events(self, pieces: list[Piece]) -> list[bytes]:
        return [event for piece in pieces for event in self._piece(piece)]

    def _piece(self, piece: Piece) -> list[bytes]:
        kind = _kind(piece)
        if isinstance(piece, ToolCall):
            block, delta = tool_block(self._head["id"], self._calls, piece), {"partial_json": piece.arguments or "{}"}
            self._calls += 1
            return [*self._enter(kind, block), self._delta({"type": "input_json_delta", **delta})]
        events = []
        if self._open != kind:
            empty = {"type": kind, kind: ""}
            events = self._enter(kind, {**empty, "signature": ""} if kind == "thinking" else empty)
        if kind == "thinking":
            self._thought += piece.text
        return [*events, self._delta({"type": f"{kind}_delta", kind: piece.text})]

    def _enter(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        events = self._close()
        self._open, self._index = kind, self._index + 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*events, named_event("content_block_start", start)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": _signature(self._thought)}))
            self._thought = ""
        self._open = ""
        return [*events, named_event("content_block_stop", {"type": "content_block_stop", "index": self._index})]
