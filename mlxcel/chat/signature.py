"""Digests of what shapes a rendered prompt: template, kwargs, tool choice, tools (layouts: facts sheet 4.4, 4.5).

The guide's four inputs are hashed; the tools digest covers a canonical form of each schema, while the template renders
the client's own bytes. That is safe because a cache key also holds the rendered tokens: permuted schema keys end in
a clean miss, never in a wrong hit.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

_TEMPLATE_DOMAIN = b"mlxcel:prompt-cache:template-sig:v1"
_TOOLS_DOMAIN = b"mlxcel:prompt-cache:tools-digest:v1"
ABSENT_TOOL_CHOICE = "__absent__"
RAW_PROMPT_SIGNATURE = "raw"  # routes that take a prompt as it is: no template took part


def _field(text: str) -> bytes:
    data = text.encode("utf-8")
    return len(data).to_bytes(8, "little") + data


def _utf8_sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _utf8_sorted(value[key]) for key in sorted(value, key=lambda k: str(k).encode("utf-8"))}
    if isinstance(value, list | tuple):
        return [_utf8_sorted(item) for item in value]
    return value


def canonical_json(value: Any) -> str:
    """Return JSON with keys in UTF-8 byte order, no spaces, and non-ASCII characters kept.

    Raises ValueError for NaN and infinities, TypeError for what JSON can't hold.
    """
    return json.dumps(_utf8_sorted(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def tools_digest(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return 64 hex characters for the tools in their order; None and an empty list agree."""
    tools = tools or ()
    hasher = blake3(_TOOLS_DOMAIN)
    hasher.update(len(tools).to_bytes(8, "little"))
    for tool in tools:
        function = tool.get("function") or {}
        parameters = function.get("parameters")
        hasher.update(_field(str(tool.get("type", ""))))
        hasher.update(_field(str(function.get("name", ""))))
        hasher.update(_field(str(function.get("description") or "")))
        hasher.update(_field("null" if parameters is None else canonical_json(parameters)))
    return hasher.hexdigest()


def tool_choice_tag(tool_choice: str | Mapping[str, Any] | None) -> str:
    """Return the tag of a checked tool_choice: absent, `mode:<mode>` or `specific:<function name>`."""
    if tool_choice is None:
        return ABSENT_TOOL_CHOICE
    if isinstance(tool_choice, str):
        return f"mode:{tool_choice}"
    return f"specific:{tool_choice['function']['name']}"


def template_signature(
    template_source: str,
    kwargs: Mapping[str, Any],
    tool_choice: str | Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    """Return 64 hex characters for the guide's four inputs of a render."""
    hasher = blake3(_TEMPLATE_DOMAIN)
    hasher.update(_field(template_source))
    hasher.update(_field(canonical_json(kwargs)))
    hasher.update(_field(tool_choice_tag(tool_choice)))
    hasher.update(_field(tools_digest(tools)))
    return hasher.hexdigest()
