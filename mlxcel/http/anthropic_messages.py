"""From Anthropic's blocks to the messages and tools that templates read, with the places that the client marked.

A `cache_control` mark becomes a beginning of the conversation that ends there; rendering it gives the token position.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlxcel.http.anthropic_schemas import AnthropicMessage, CountBody
from mlxcel.http.errors import ApiError

MOST_MARKS = 4
TTLS_S = {"5m": 300.0, "1h": 3600.0}
# Claude Code's first system block: a figure of each single request, no text for the model, and never the same twice.
_BILLING = "x-anthropic-billing-header:"
Turn = dict[str, Any]


class Conversation(msgspec.Struct):
    """Messages and tools as templates read them. `marks`: beginnings that the client marked; `ttl_s`: the longest asked for."""

    messages: list[Turn] = []
    tools: list[dict[str, Any]] = []
    marks: list[list[Turn]] = []
    tools_marked: bool = False
    ttl_s: float | None = None
    marked: int = 0

    def mark(self, block: Mapping[str, Any], where: str) -> bool:
        """Tell whether the block carries a mark. Raises ApiError for one that isn't valid or one too many."""
        control = block.get("cache_control")
        if control is None:
            return False
        where = f"{where}.cache_control"
        if not isinstance(control, dict) or control.get("type") != "ephemeral":
            raise ApiError("invalid_request", 'cache_control takes {"type": "ephemeral"}.', param=where)
        ttl = control.get("ttl")
        if ttl is not None:
            if not isinstance(ttl, str) or ttl not in TTLS_S:
                raise ApiError("invalid_request", "ttl takes 5m or 1h.", param=f"{where}.ttl")
            self.ttl_s = max(self.ttl_s or 0.0, TTLS_S[ttl])
        self.marked += 1
        if self.marked > MOST_MARKS:
            raise ApiError("invalid_request", f"At most {MOST_MARKS} blocks may carry cache_control.", param=where)
        return True

    def mark_here(self) -> None:
        """Remember the conversation up to here; messages are changed by adding only, so copies are cheap."""
        self.marks.append([*self.messages[:-1], dict(self.messages[-1])])


def conversation(body: CountBody) -> Conversation:
    """Return the request's conversation. Raises ApiError naming the field."""
    found = Conversation()
    found.tools = [_tool(found, tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    _system(found, body.system)
    if not body.messages:
        raise ApiError("invalid_request", "messages must hold at least one message.", param="messages")
    for index, message in enumerate(body.messages):
        _message(found, message, f"messages[{index}]")
    if body.cache_control is not None and found.mark({"cache_control": body.cache_control}, "request"):
        found.mark_here()
    return found


def _tool(found: Conversation, tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None):
        raise ApiError("unsupported", "Only tools of the client's own are supported.", param=f"{where}.type")
    name, description, schema = tool.get("name"), tool.get("description"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise ApiError("invalid_request", "A tool needs a name.", param=f"{where}.name")
    if not isinstance(description, str | None):
        raise ApiError("invalid_request", "description must be text.", param=f"{where}.description")
    if not isinstance(schema, dict):
        raise ApiError("invalid_request", "A tool needs an input_schema object.", param=f"{where}.input_schema")
    found.tools_marked = found.mark(tool, where) or found.tools_marked
    words = {} if description is None else {"description": description}
    return {"type": "function", "function": {"name": name, **words, "parameters": schema}}


def _system(found: Conversation, system: str | Sequence[Mapping[str, Any]] | None) -> None:
    if not system:
        return
    if isinstance(system, str):
        found.messages.append({"role": "system", "content": system})
        return
    turn: Turn = {"role": "system", "content": ""}
    for index, block in enumerate(system):
        text = _text(block, f"system[{index}]")
        if text.startswith(_BILLING):
            continue
        if not found.messages:
            found.messages.append(turn)
        turn["content"] += text
        if found.mark(block, f"system[{index}]"):
            found.mark_here()


def _message(found: Conversation, message: AnthropicMessage, where: str) -> None:
    if message.role not in ("user", "assistant"):
        raise ApiError(
            "invalid_request", f"{message.role[:40]!r} is not one of user, assistant.", param=f"{where}.role"
        )
    if isinstance(message.content, str):
        found.messages.append({"role": message.role, "content": message.content})
        return
    if not message.content:
        raise ApiError("invalid_request", "content may not be an empty list.", param=f"{where}.content")
    read = _user_block if message.role == "user" else _assistant_block
    if message.role == "assistant":
        found.messages.append({"role": "assistant"})
    before = len(found.messages)
    for index, block in enumerate(message.content):
        read(found, block, f"{where}.content[{index}]", index == 0 or len(found.messages) == before)
        if found.mark(block, f"{where}.content[{index}]"):
            found.mark_here()


def _user_block(found: Conversation, block: Mapping[str, Any], where: str, first: bool) -> None:
    """Texts side by side are one message; each tool result is one of its own."""
    kind = block.get("type")
    if kind == "tool_result":
        call = block.get("tool_use_id")
        if not isinstance(call, str) or not call:
            raise ApiError("invalid_request", "A tool_result needs a tool_use_id.", param=f"{where}.tool_use_id")
        found.messages.append({"role": "tool", "tool_call_id": call, "content": _result(block.get("content"), where)})
        return
    text = _text(block, where)
    if not first and found.messages[-1]["role"] == "user":
        found.messages[-1]["content"] += text
    else:
        found.messages.append({"role": "user", "content": text})


def _result(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ApiError("invalid_request", "content takes text or blocks.", param=f"{where}.content")
    return "".join(_text(block, f"{where}.content[{index}]") for index, block in enumerate(content))


def _assistant_block(found: Conversation, block: Mapping[str, Any], where: str, first: bool) -> None:
    turn, kind = found.messages[-1], block.get("type")
    if kind == "thinking":
        thinking = block.get("thinking")
        if not isinstance(thinking, str):
            raise ApiError("invalid_request", "A thinking block needs text.", param=f"{where}.thinking")
        turn["reasoning_content"] = turn["thinking"] = turn.get("thinking", "") + thinking
    elif kind == "redacted_thinking":
        return  # another service's secret: there is nothing in it that this model could read
    elif kind == "tool_use":
        call, name, given = block.get("id"), block.get("name"), block.get("input", {})
        if not isinstance(call, str) or not isinstance(name, str) or not isinstance(given, dict):
            raise ApiError("invalid_request", "A tool_use needs id, name and an input object.", param=where)
        function = {"name": name, "arguments": given}
        turn["tool_calls"] = [*turn.get("tool_calls", ()), {"id": call, "type": "function", "function": function}]
    else:
        turn["content"] = turn.get("content", "") + _text(block, where)


def _text(block: Mapping[str, Any], where: str) -> str:
    kind, text = block.get("type"), block.get("text")
    if kind != "text":
        known = kind in ("image", "document", "search_result", "container_upload", "server_tool_use")
        words = "The loaded model reads text only" if known else "Unknown type of content block"
        raise ApiError("unsupported" if known else "invalid_request", f"{words}: {str(kind)[:40]!r}.", param=where)
    if not isinstance(text, str):
        raise ApiError("invalid_request", "A text block needs text.", param=f"{where}.text")
    return text
