"""From the fields that all generating routes share to sampling parameters, limits and cache choices."""

import hashlib
import math
from typing import Any

from mlxcel.chat.session import session_key
from mlxcel.http.errors import ApiError
from mlxcel.http.schemas import SamplingFields, cache_field
from mlxcel.http.settings import HttpSettings
from mlxcel.ports import CacheOptions, CacheScope, ModelFacts, SamplingParams

MAX_TTL_S = 365 * 86400.0
NO_LIMIT = -1  # llama.cpp's word for "to the end of the context"; only its own route and the setting take it


def in_range(name: str, value: float | None, low: float, high: float, default: float) -> float:
    """Return `value` or the default. Raises ApiError naming the field when it is out of [low, high]."""
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high:
        raise ApiError("invalid_request", f"{name} must be between {low:g} and {high:g}, got {value:g}.", param=name)
    return float(value)


def check_common(body: SamplingFields) -> None:
    """Refuse what all routes refuse. Raises ApiError."""
    if body.n is not None and body.n != 1:
        raise ApiError("unsupported", f"n must be 1: this server gives one choice a request, got {body.n}.", param="n")
    if body.stream_options is not None and not body.stream:
        raise ApiError("invalid_request", "stream_options is only allowed when stream is true.", param="stream_options")


def sampling(body: SamplingFields, facts: ModelFacts, settings: HttpSettings, logprobs: int) -> SamplingParams:
    """Return checked sampling parameters. `logprobs`: -1 none, n the n likeliest. Raises ApiError."""
    seed = body.seed
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise ApiError("invalid_request", "seed must fit into 64 bits.", param="seed")
    top_k = in_range("top_k", body.top_k, -1, 2**31 - 1, settings.default_top_k)
    return SamplingParams(
        temperature=in_range("temperature", body.temperature, 0, 2, settings.default_temperature),
        top_p=in_range("top_p", body.top_p, 0, 1, settings.default_top_p),
        top_k=max(0, int(top_k)) if top_k < facts.vocab_size else 0,  # 0, -1 and "all" mean: no limit
        min_p=in_range("min_p", body.min_p, 0, 1, settings.default_min_p),
        seed=None if seed is None or seed == -1 else seed & (2**63 - 1),
        repetition_penalty=_repetition(body.repetition_penalty),
        presence_penalty=in_range("presence_penalty", body.presence_penalty, -2, 2, 0.0),
        frequency_penalty=in_range("frequency_penalty", body.frequency_penalty, -2, 2, 0.0),
        logit_bias=logit_bias(body.logit_bias, facts.vocab_size),
        logprobs=logprobs,
    )


def _repetition(value: float | None) -> float:
    if value is not None and value == 0:
        raise ApiError("invalid_request", "repetition_penalty must be above 0.", param="repetition_penalty")
    return in_range("repetition_penalty", value, 0, 10, 1.0)


def logit_bias(raw: dict[str, Any] | None, vocab_size: int) -> dict[int, float]:
    """Return token id -> bias. Raises ApiError for a key that is no token id or a value outside [-100, 100]."""
    biases: dict[int, float] = {}
    for key, value in (raw or {}).items():
        if not (key.isascii() and key.isdigit()) or len(key) > 9 or int(key) >= vocab_size:
            raise ApiError("invalid_request", f"logit_bias: {key[:40]!r} is no token id.", param="logit_bias")
        biases[int(key)] = in_range("logit_bias", value, -100, 100, 0.0)
    return biases


def stop_strings(body: SamplingFields, limit: int, param: str = "stop") -> tuple[str, ...]:
    """Return the stop strings. Raises ApiError for an empty one or too many."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > limit:
        raise ApiError("invalid_request", f"{param} takes at most {limit} strings, got {len(stops)}.", param=param)
    if any(not stop for stop in stops):
        raise ApiError("invalid_request", f"{param} may not hold an empty string.", param=param)
    return tuple(stops)


def token_limit(
    asked: int | None, asked_param: str, prompt_tokens: int, facts: ModelFacts, settings: HttpSettings, param: str
) -> int:
    """Return how many tokens may be generated: what was asked or the default, within what the context leaves.

    Raises ApiError `context_length_exceeded` when the prompt leaves no room for one token.
    """
    if asked is not None and asked < 1 and (asked_param, asked) != ("n_predict", NO_LIMIT):
        raise ApiError("invalid_request", f"{asked_param} must be at least 1, got {asked}.", param=asked_param)
    left = facts.context_tokens - prompt_tokens
    if left < 1:
        raise ApiError("context_length_exceeded", _too_long(prompt_tokens, asked, facts, settings, param), param=param)
    wanted = asked if asked is not None else settings.default_max_tokens
    return left if wanted == NO_LIMIT else min(wanted, left)


def _too_long(prompt_tokens: int, asked: int | None, facts: ModelFacts, settings: HttpSettings, param: str) -> str:
    """OpenAI's two sentences: clients look for them in the text."""
    limit = facts.context_tokens
    if param == "messages":
        return (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens. Please reduce the length of the messages."
        )
    completion = max(1, asked if asked is not None else settings.default_max_tokens)
    return (
        f"This model's maximum context length is {limit} tokens, however you requested {prompt_tokens + completion} "
        f"tokens ({prompt_tokens} in your prompt; {completion} for the completion). Please reduce your prompt; or "
        "completion length."
    )


def cache_options(body: Any) -> CacheOptions:
    """Return the request's cache choices. Raises ApiError for a TTL that is no positive number."""
    whole = cache_field(body, "cache_prompt") is not False
    ttl = cache_field(body, "cache_ttl_s")
    if ttl is not None and not (math.isfinite(ttl) and 0 < ttl <= MAX_TTL_S):
        raise ApiError("invalid_request", "cache_ttl_s must be above 0 and at most a year.", param="cache_ttl_s")
    return CacheOptions(
        read=whole and not cache_field(body, "cache_no_read"),
        store=whole and not cache_field(body, "cache_no_store"),
        ttl_s=None if ttl is None else float(ttl),
    )


def tenant_prefix(tenant: str) -> str:
    """Return what the salts of all of a tenant's entries begin with ("" without keys)."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest() if tenant else ""


def holders(settings: HttpSettings) -> list[tuple[str, str]]:
    """Return (tenant, salt of its entries) of everybody who has a key; one nameless holder where there are no keys."""
    tenants = {key.tenant: f"{tenant_prefix(key.salt or key.tenant)}:" for key in settings.api_keys}
    return sorted(tenants.items()) or [("", "")]


def cache_scope(body: Any, template_sig: str, tenant: str) -> CacheScope:
    """Return which entries the request may share. Only digests of tenant and salt go on, never their text."""
    salt = cache_field(body, "cache_salt") or ""
    within = hashlib.blake2b(salt.encode(), digest_size=16).hexdigest() if salt else ""
    return CacheScope(
        template_sig=template_sig,
        session_key=session_key(cache_field(body, "prompt_cache_key"), body.user),
        tenant_salt=f"{tenant_prefix(tenant)}:{within}" if tenant or salt else "",
    )
