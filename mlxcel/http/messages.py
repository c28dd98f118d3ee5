"""Check the messages and tools of a chat and give them the shape that templates read. Refusals name their field."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlxcel.http.errors import ApiError
from mlxcel.http.schemas import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
_MEDIA = ("image_url", "input_image", "image", "input_audio", "audio", "file", "video_url", "video")
_RESERVED_KWARGS = ("messages", "tools", "documents", "add_generation_prompt")


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as dictionaries for a template. Raises ApiError."""
    if not messages:
        raise ApiError("invalid_request", "messages must hold at least one message.", param="messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise ApiError(
            "invalid_request", f"{message.role[:40]!r} is not one of {', '.join(ROLES)}.", param=f"{where}.role"
        )
    if message.function_call is not None:
        raise ApiError("unsupported", "function_call is not supported; use tool_calls.", param=f"{where}.function_call")
    if message.tool_calls is not None and message.role != "assistant":
        raise ApiError("invalid_request", "Only the assistant calls tools.", param=f"{where}.tool_calls")
    if message.role == "tool" and not message.tool_call_id:
        raise ApiError("invalid_request", "A tool message needs a tool_call_id.", param=f"{where}.tool_call_id")
    reasoning = message.reasoning_content or message.reasoning
    return {
        "role": message.role,
        "content": _content(message, where),
        "name": message.name,
        "tool_calls": [_call(call) for call in message.tool_calls] if message.tool_calls else None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": reasoning,
        "thinking": reasoning,
    }


def _call(call: Any) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _content(message: Message, where: str) -> str | None:
    """Return the text. Parts are joined with nothing between them: each part carries its own white space."""
    content = message.content
    if content is None:
        content = message.refusal
    if content is None:
        if message.role == "assistant" and (message.tool_calls or message.reasoning_content or message.reasoning):
            return None
        raise ApiError("invalid_request", f"A message of role {message.role} needs content.", param=f"{where}.content")
    if isinstance(content, str):
        return content
    if not content:
        raise ApiError("invalid_request", "content may not be an empty list.", param=f"{where}.content")
    return "".join(_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: Mapping[str, Any], where: str) -> str:
    kind = part.get("type")
    if kind in ("text", "input_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ApiError("invalid_request", f"A part of type {kind} needs a string.", param=f"{where}.text")
        return text
    if kind in _MEDIA:
        raise ApiError("unsupported", f"The loaded model reads text only; {kind} is not supported.", param=where)
    raise ApiError("invalid_request", f"Unknown type of content part: {str(kind)[:40]!r}.", param=f"{where}.type")


def checked_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the tools as the client sent them: templates render keys in the client's order. Raises ApiError."""
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.get("type") != "function":
            raise ApiError("unsupported", "Only tools of type function are supported.", param=f"{where}.type")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise ApiError("invalid_request", "A tool needs a function object.", param=f"{where}.function")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ApiError("invalid_request", "A function needs a name.", param=f"{where}.function.name")
        if not isinstance(function.get("description"), str | None):
            raise ApiError("invalid_request", "description must be text.", param=f"{where}.function.description")
        if not isinstance(function.get("parameters"), dict | None):
            raise ApiError("invalid_request", "parameters must be an object.", param=f"{where}.function.parameters")
    return list(tools or ())


def checked_tool_choice(choice: str | dict[str, Any] | None, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return "auto", "none" or None. Forcing a call is refused, since nothing here could keep that promise."""
    if choice is None or choice in ("auto", "none"):
        return choice if isinstance(choice, str) else None
    if isinstance(choice, dict):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        if name not in [tool["function"]["name"] for tool in tools]:
            raise ApiError("invalid_request", "tool_choice names a function that is not in tools.", param="tool_choice")
        raise ApiError("unsupported", "tool_choice with a named function is not supported.", param="tool_choice")
    if choice == "required":
        if not tools:
            raise ApiError("invalid_request", "tool_choice is required but tools is empty.", param="tool_choice")
        raise ApiError("unsupported", 'tool_choice "required" is not supported.', param="tool_choice")
    raise ApiError("invalid_request", f"Unknown tool_choice: {choice[:40]!r}.", param="tool_choice")


def checked_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the template's extra variables. Raises ApiError for names that the server itself fills."""
    for name in kwargs or ():
        if name in _RESERVED_KWARGS:
            raise ApiError("invalid_request", f"{name} can't be set here.", param=f"chat_template_kwargs.{name}")
    return dict(kwargs or {})


def prompt_ids(raw: Any, vocab_size: int) -> str | list[int]:
    """Return a completion's prompt as text or token ids; a list with one prompt is that prompt. Raises ApiError."""
    if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], str | list):
        raw = raw[0]
    if isinstance(raw, str):
        if not raw:
            raise ApiError("invalid_request", "prompt may not be empty.", param="prompt")
        return raw
    if isinstance(raw, list) and raw and all(isinstance(item, str | list) for item in raw):
        raise ApiError("unsupported", "Only one prompt a request is supported.", param="prompt")
    try:
        ids = msgspec.convert(raw, list[int])
    except msgspec.ValidationError as fault:
        message = "prompt must be a string, a list of token ids, or a list with one of them."
        raise ApiError("invalid_request", message, param="prompt") from fault
    if not ids or min(ids) < 0 or max(ids) >= vocab_size:
        message = f"prompt needs at least one token id, each at least 0 and below {vocab_size}."
        raise ApiError("invalid_request", message, param="prompt")
    return ids
