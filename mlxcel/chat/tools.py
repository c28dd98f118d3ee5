"""Find tool calls in streaming text. What is no valid call comes out as plain text: nothing is ever dropped."""

from mlxcel.chat.reasoning import held_suffix
from mlxcel.chat.tool_formats import (
    ToolCall,
    ToolFormat,
    parse_json_call,
    parse_llama3,
    parse_mistral,
    parse_xml_call,
)

Found = str | ToolCall


class TaggedCalls:
    """Calls between two tags: Hermes and Qwen (JSON inside), Qwen3-Coder (function blocks inside)."""

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, form: ToolFormat) -> None:
        self._parse = parse_xml_call if form == "xml" else parse_json_call
        self._held = ""
        self._inside = False

    def push(self, text: str) -> list[Found]:
        """Return text and calls that are certain, in order."""
        self._held += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Found]:
        """Return the rest; a call that the model left open at the end counts when it is whole."""
        held, self._held = self._held, ""
        if not self._inside:
            return [held] if held else []
        try:
            return [self._parse(held)]
        except ValueError:
            return [self._OPEN + held]

    def _step(self, found: list[Found]) -> bool:
        tag = self._CLOSE if self._inside else self._OPEN
        at = self._held.find(tag)
        if at < 0:
            if not self._inside:
                certain = len(self._held) - held_suffix(self._held, tag)
                self._emit(found, self._held[:certain])
                self._held = self._held[certain:]
            return False
        body, self._held = self._held[:at], self._held[at + len(tag) :]
        if self._inside:
            try:
                found.append(self._parse(body))
            except ValueError:
                self._emit(found, self._OPEN + body + self._CLOSE)
        else:
            self._emit(found, body)
        self._inside = not self._inside
        return True

    def _emit(self, found: list[Found], text: str) -> None:
        if text:
            found.append(text)


class TrailingCalls:
    """Calls that begin with a mark and run to the end of the answer: Mistral, Llama 3."""

    def __init__(self, form: ToolFormat) -> None:
        self._mistral = form == "mistral"
        self._mark = "[TOOL_CALLS]" if self._mistral else "<|python_tag|>"
        self._held = ""
        self._inside = False
        self._begun = False  # some text of the answer is out

    def push(self, text: str) -> list[Found]:
        """Return text that is certain to be no call."""
        self._held += text
        if self._inside:
            return []
        if not self._mistral and not self._begun and self._held.lstrip().startswith("{"):
            self._inside = True
            return []
        at = self._held.find(self._mark)
        certain = at if at >= 0 else len(self._held) - held_suffix(self._held, self._mark)
        self._inside = at >= 0
        out, self._held = self._held[:certain], self._held[certain:]
        self._begun = self._begun or bool(out.strip())
        return [out] if out else []

    def finish(self) -> list[Found]:
        """Return the calls, or the held text where it holds none."""
        held, self._held = self._held, ""
        if not self._inside:
            return [held] if held else []
        try:
            if self._mistral:
                return list(parse_mistral(held.removeprefix(self._mark)))
            return list(parse_llama3(held.strip()))
        except ValueError:
            return [held]


class NoCalls:
    """Passes text through: no tools were offered, or the template knows none."""

    def push(self, text: str) -> list[Found]:
        """Return the text."""
        return [text] if text else []

    def finish(self) -> list[Found]:
        """Return nothing: no text is held back."""
        return []


def tool_parser(form: ToolFormat) -> TaggedCalls | TrailingCalls | NoCalls:
    """Return a parser for one answer."""
    if form in ("hermes", "xml"):
        return TaggedCalls(form)
    return NoCalls() if form == "none" else TrailingCalls(form)
