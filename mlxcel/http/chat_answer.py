"""A chat answer, whole or as chunks: the role first, one finish_reason, usage after it when asked for."""

from typing import Any

from mlxcel.chat.output import Content, OutputParser, Piece, Reasoning
from mlxcel.chat.tokenizer import Tokenizer
from mlxcel.chat.tool_formats import ToolCall
from mlxcel.http.errors import ApiError
from mlxcel.http.logprobs import chat_entries
from mlxcel.http.respond import usage_of
from mlxcel.http.sse import DONE, EventWriter, data_event
from mlxcel.ports import Delta, Finished


def call_body(request_id: str, index: int, call: ToolCall) -> dict[str, Any]:
    """Return one tool call in OpenAI's shape; the arguments are the model's own text."""
    return {
        "id": f"call_{request_id[-24:]}_{index}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def finish_reason(finished: Finished, calls: int) -> str:
    """Tool calls outrank a natural stop; an answer that was cut stays "length"."""
    return "tool_calls" if calls and finished.finish_reason != "length" else finished.finish_reason


class ChatAnswer:
    """Collects a whole answer."""

    def __init__(self, head: dict[str, Any], parser: OutputParser, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self._head = head
        self._parser = parser
        self._tokenizer = tokenizer
        self._logprobs: list[dict[str, Any]] | None = [] if with_logprobs else None
        self._pieces: list[Piece] = []

    def delta(self, item: Delta) -> None:
        """Take text that became certain."""
        self._pieces += self._parser.push(item.text)
        if self._logprobs is not None:
            self._logprobs += chat_entries(self._tokenizer, item)

    def answer(self, item: Finished) -> dict[str, Any]:
        """Return the body."""
        self._pieces += self._parser.finish()
        content = "".join(piece.text for piece in self._pieces if isinstance(piece, Content))
        reasoning = "".join(piece.text for piece in self._pieces if isinstance(piece, Reasoning))
        calls = [piece for piece in self._pieces if isinstance(piece, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call_body(self._head["id"], index, call) for index, call in enumerate(calls)]
        choice = {
            "index": 0,
            "message": {**message, "refusal": None},
            "logprobs": None if self._logprobs is None else {"content": self._logprobs, "refusal": None},
            "finish_reason": finish_reason(item, len(calls)),
        }
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage_of(item)}


class ChatWriter(EventWriter):
    """Writes an answer as chunks."""

    def __init__(
        self,
        head: dict[str, Any],
        parser: OutputParser,
        tokenizer: Tokenizer,
        with_logprobs: bool,
        include_usage: bool,
    ) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._parser = parser
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._include_usage = include_usage
        self._waiting: list[dict[str, Any]] = []  # log probabilities of text that is still held back
        self._begun = False

    def delta(self, item: Delta) -> list[bytes]:
        """Return the chunks of text that became certain."""
        if self._with_logprobs:
            self._waiting += chat_entries(self._tokenizer, item)
        return [*self._role(), *self._chunks(self._parser.push(item.text))]

    def finished(self, item: Finished) -> list[bytes]:
        """Return the rest, the chunk with the finish_reason, usage if asked for, and [DONE]."""
        events = [*self._role(), *self._chunks(self._parser.finish())]
        events.append(self._chunk({}, finish_reason(item, self._parser.calls)))
        if self._include_usage:
            events.append(data_event({**self._head, "choices": [], "usage": usage_of(item)}))
        return [*events, DONE]

    def failed(self, fault: ApiError) -> list[bytes]:
        """Return the error as data; [DONE] does not follow, since the answer is not done."""
        return [data_event(fault.body())]

    def _role(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        return [self._chunk({"role": "assistant", "content": ""}, None, with_logprobs=False)]

    def _chunks(self, pieces: list[Piece]) -> list[bytes]:
        return [self._chunk(self._delta_of(piece), None) for piece in pieces]

    def _delta_of(self, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, Content):
            return {"content": piece.text}
        if isinstance(piece, Reasoning):
            return {"reasoning_content": piece.text}
        index, self._calls_written = self._calls_written, self._calls_written + 1
        return {"tool_calls": [{"index": index, **call_body(self._head["id"], index, piece)}]}

    _calls_written = 0

    def _chunk(self, delta: dict[str, Any], finish: str | None, with_logprobs: bool = True) -> bytes:
        logprobs = None
        if self._with_logprobs and with_logprobs and self._waiting:
            logprobs, self._waiting = {"content": self._waiting, "refusal": None}, []
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return data_event({**self._head, "choices": [choice], **usage})
