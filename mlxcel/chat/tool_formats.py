"""How models write tool calls, and how the text of one becomes (name, arguments).

Arguments keep the model's own bytes wherever the format is JSON, so that the next turn renders what was generated.
"""

import json
import re
from typing import Literal

import msgspec

ToolFormat = Literal["hermes", "xml", "mistral", "llama3", "none"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call. `arguments` is the JSON text that the model wrote."""

    name: str
    arguments: str


def tool_format(template_source: str) -> ToolFormat:
    """Return the format that a template teaches its model, judged by the markers in its text."""
    if "<tool_call>" in template_source:
        return "xml" if "<function=" in template_source else "hermes"
    if "[TOOL_CALLS]" in template_source:
        return "mistral"
    if "<|python_tag|>" in template_source or ("Environment: ipython" in template_source):
        return "llama3"
    return "none"


def marker_texts(form: ToolFormat) -> tuple[str, ...]:
    """Return texts that must stay visible for the parser even where they are special tokens."""
    return {
        "hermes": ("<tool_call>", "</tool_call>"),
        "xml": ("<tool_call>", "</tool_call>"),
        "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        "llama3": ("<|python_tag|>",),
        "none": (),
    }[form]


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def object_members(text: str, at: int = 0) -> tuple[dict[str, str], int]:
    """Return the members of the JSON object at `at` as name -> source text, and where it ends. Raises ValueError."""
    members: dict[str, str] = {}
    at = _skip(text, at)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError("not a JSON object")
        start = _skip(text, at + 1)
        _, at = _DECODER.raw_decode(text, start)
        members[name] = text[start:at]
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "}":
            raise ValueError("not a JSON object")
    return members, at + 1


def call_of_members(members: dict[str, str]) -> ToolCall:
    """Return the call that a JSON object describes. Raises ValueError when it has no name."""
    name = json.loads(members.get("name", "null"))
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call without a name")
    source = members.get("arguments", members.get("parameters", "{}"))
    # Some models put the arguments in a JSON string; its content is what the client wants.
    parsed = json.loads(source)
    return ToolCall(name, parsed if isinstance(parsed, str) else source)


def parse_json_call(text: str) -> ToolCall:
    """Parse `{"name": ..., "arguments": {...}}` and nothing after it. Raises ValueError."""
    members, end = object_members(text)
    if text[end:].strip():
        raise ValueError("text after a tool call")
    return call_of_members(members)


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def parse_xml_call(text: str) -> ToolCall:
    """Parse Qwen3-Coder's `<function=f><parameter=p>value</parameter></function>`. Raises ValueError."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        raise ValueError("not a function block")
    arguments = {}
    for name, value in _PARAMETER.findall(match.group(2)):
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return ToolCall(match.group(1), json.dumps(arguments, ensure_ascii=False))


_NAMED = re.compile(r"\s*([A-Za-z0-9_.\-]+)(?:\[CALL_ID\][A-Za-z0-9]+)?\[ARGS\]")


def parse_mistral(text: str) -> list[ToolCall]:
    """Parse what follows [TOOL_CALLS]: a JSON list, or `name[ARGS]{...}` (newer models). Raises ValueError."""
    text = text.strip()
    if match := _NAMED.match(text):
        _, end = _DECODER.raw_decode(text, _skip(text, match.end()))
        rest = text[end:].removeprefix("[TOOL_CALLS]")
        first = ToolCall(match.group(1), text[_skip(text, match.end()) : end])
        return [first, *(parse_mistral(rest) if rest.strip() else [])]
    if not text.startswith("["):
        raise ValueError("not a list of tool calls")
    calls, at = [], _skip(text, 1)
    while text[at : at + 1] == "{":
        members, at = object_members(text, at)
        calls.append(call_of_members(members))
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at : at + 1] == "," else at
    if text[at:].strip() != "]" or not calls:
        raise ValueError("not a list of tool calls")
    return calls


def parse_llama3(text: str) -> list[ToolCall]:
    """Parse `{"name": ..., "parameters": ...}` objects, separated by `;`, after an optional tag. Raises ValueError."""
    text, at, calls = text.removeprefix("<|python_tag|>"), 0, []
    while True:
        members, at = object_members(text, at)
        calls.append(call_of_members(members))
        at = _skip(text, at)
        if at == len(text):
            return calls
        if text[at] != ";":
            raise ValueError("text after a tool call")
        at += 1
