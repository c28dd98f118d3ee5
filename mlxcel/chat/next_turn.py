"""With which tokens the next turn will begin, whatever its user says: the past as the template will show it then.

Two probe turns with different user texts are rendered behind the answer; what their tokens have in common is certain.
Thinking that a template drops from the past is dropped here too, since the client's message has none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxcel.chat.output import Content, OutputParser
from mlxcel.chat.templates import ChatTemplate, Message, TemplateRefused
from mlxcel.chat.tokenizer import Tokenizer, pack_tokens
from mlxcel.chat.tool_formats import ToolCall

# Nothing of these is in common, and the header's last line break, which may melt into one that a text begins with, isn't.
PROBES = ("ok", "\nTell me more about that, please.")


class NextTurn:
    """Call it with the answer's text, as the model wrote it; None where no next turn can be foreseen."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        parser: Callable[[], OutputParser],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._messages = list(messages)
        self._tools = list(tools)
        self._kwargs = dict(kwargs)
        self._parser = parser

    def __call__(self, said: str) -> bytes | None:
        """Return the certain tokens (int32 little-endian), or None after tool calls and where the template refuses."""
        parser = self._parser()
        pieces = [*parser.push(said), *parser.finish()]
        if any(isinstance(piece, ToolCall) for piece in pieces):
            return None
        answer = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        past = [*self._messages, {"role": "assistant", "content": answer}]
        try:
            first, second = (self._tokens([*past, {"role": "user", "content": probe}]) for probe in PROBES)
        except TemplateRefused:
            return None
        pairs = enumerate(zip(first, second, strict=False))
        common = next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
        return pack_tokens(first[:common]) if common else None

    def _tokens(self, messages: list[Message]) -> list[int]:
        text = self._template.render(messages, self._tools, add_generation_prompt=True, kwargs=self._kwargs)
        return self._tokenizer.encode_rendered(text)
