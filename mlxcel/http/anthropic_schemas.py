"""Bodies of Anthropic's Messages API. Blocks are checked one by one afterwards, so that a refusal can name its block."""

from typing import Any

import msgspec

from mlxcel.http.schemas import CacheFields, Number


class AnthropicMessage(msgspec.Struct):
    """One turn. `content`: text or blocks."""

    role: str
    content: str | list[dict[str, Any]]


class Metadata(msgspec.Struct):
    """Anthropic's metadata; the user names the session where nothing else does."""

    user_id: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """How tools may be used."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks first. `budget_tokens` is accepted and not enforced."""

    type: str
    budget_tokens: int | None = None


class CountBody(CacheFields, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: dict[str, Any] | None = None
    metadata: Metadata | None = None
    extra_body: CacheFields | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
