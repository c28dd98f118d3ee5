"""What an answer is made of: reasoning, content and tool calls, in the order in which they become certain."""

import msgspec

from mlxcel.chat.reasoning import PartKind, ReasoningMarks, ReasoningSplitter
from mlxcel.chat.tool_formats import ToolCall, ToolFormat
from mlxcel.chat.tools import Found, tool_parser


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model thinks."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """Text that the model answers."""

    text: str


Piece = Reasoning | Content | ToolCall


class OutputParser:
    """Splits one streaming answer. Text next to tool calls that is only white space is left out.

    Without `parallel_calls` the answer ends with its first call: what the model writes after it is left out.
    """

    def __init__(
        self, marks: ReasoningMarks | None, inside_reasoning: bool, form: ToolFormat, parallel_calls: bool = True
    ) -> None:
        self._splitter = ReasoningSplitter(marks, inside_reasoning)
        self._tools = tool_parser(form)
        self._space = ""  # white space that is content only if something visible follows
        self._parallel_calls = parallel_calls
        self.calls = 0

    def push(self, text: str) -> list[Piece]:
        """Return the pieces that became certain."""
        return self._route(self._splitter.push(text))

    def finish(self) -> list[Piece]:
        """Return the rest of the answer."""
        pieces = self._route(self._splitter.finish()) + self._content(self._tools.finish())
        if self._space and not self.calls:
            pieces.append(Content(self._space))
            self._space = ""
        return pieces

    def _route(self, parts: list[tuple[PartKind, str]]) -> list[Piece]:
        pieces: list[Piece] = []
        for kind, text in parts:
            if kind == "reasoning":
                pieces.append(Reasoning(text))
            else:
                pieces += self._content(self._tools.push(text))
        return pieces

    def _content(self, found: list[Found]) -> list[Piece]:
        pieces: list[Piece] = []
        for item in found:
            if self.calls and not self._parallel_calls:
                break
            if isinstance(item, ToolCall):
                self.calls += 1
                self._space = ""
                pieces.append(item)
                continue
            text = self._space + item
            visible = text.rstrip("\n")
            self._space = text[len(visible) :]
            if visible:
                pieces.append(Content(visible))
        return pieces
