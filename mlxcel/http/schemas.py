"""Request bodies. Types are strict, unknown fields are ignored and never reach a cache key.

Fields that the cache reads may stand at the top level or inside `extra_body` (the OpenAI SDK flattens it; some clients
send it nested). The top level wins.
"""

from typing import Any

import msgspec

Number = float | int


class CacheFields(msgspec.Struct, kw_only=True):
    """What a request may say about the cache. `cache_prompt: false` neither reads nor stores."""

    cache_prompt: bool | None = None
    cache_no_read: bool | None = None
    cache_no_store: bool | None = None
    cache_ttl_s: Number | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct):
    """OpenAI's stream options."""

    include_usage: bool | None = None


class SamplingFields(CacheFields, kw_only=True):
    """What chat and completions share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    extra_body: CacheFields | None = None


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """A call in the history; arguments as text pass through unchanged."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCallMessage(msgspec.Struct, omit_defaults=True):
    """A tool call of an assistant message."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a chat. Parts are checked one by one afterwards, so that a refusal can name its part."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class ChatBody(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None


class CompletionBody(SamplingFields, kw_only=True):
    """POST /v1/completions. `prompt`: text, token ids, or a list that holds one of either."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    return_token_ids: bool | None = None  # vLLM's name: the answer's token ids beside its text, not streamed


class NativeCompletionBody(CacheFields, kw_only=True):
    """POST /completion, with llama-server's names. `n_predict` -1: up to the end of the context."""

    prompt: str | list[Any]
    n_predict: int | None = None
    stream: bool | None = None
    temperature: Number | None = None
    top_k: int | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    repeat_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | list[list[Any]] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n_probs: int | None = None
    n: int | None = None
    n_cmpl: int | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    verbose: bool | None = None
    grammar: Any = None
    json_schema: Any = None
    user: str | None = None
    extra_body: CacheFields | None = None


class ProbeBody(CacheFields, kw_only=True):
    """POST /v1/cache/probe: a chat or a prompt, as the generating routes take them."""

    messages: list[Message] | None = None
    prompt: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    user: str | None = None
    extra_body: CacheFields | None = None


class ResetBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/cache/reset, where a body is sent at all. A misspelt field is refused: pins would seem to be gone."""

    include_pins: bool = False


def cache_field(body: Any, name: str) -> Any:
    """Return a cache field of the body, else of its nested `extra_body`, else None."""
    value = getattr(body, name)
    if value is None and body.extra_body is not None:
        value = getattr(body.extra_body, name)
    return value
