"""Which KV a request may share."""

from mlxcel.core.keys import EMPTY_MEDIA, NamespaceKey
from mlxcel.ports import CacheScope, ModelFacts


def namespace_key(facts: ModelFacts, scope: CacheScope, prompt_tokens: int, block_size: int) -> NamespaceKey:
    """Return the namespace of a request: which KV it may share. The RoPE regime follows from the whole prompt's length."""
    boundary = facts.rope_regime_boundary
    regime = None if boundary is None else int(prompt_tokens > boundary)
    return NamespaceKey(
        model_fingerprint=facts.fingerprint,
        lora_id=facts.lora_id or scope.lora_id,
        rope_regime=regime,
        kv_mode=facts.kv_mode,
        media_digest=scope.media_digest or EMPTY_MEDIA,
        tenant_salt=scope.tenant_salt,
        block_size=block_size,
    )


def regime_crossed(facts: ModelFacts, prompt_tokens: int, length: int) -> bool:
    """True when generation went over the RoPE boundary: rows of both tables are not to be kept."""
    boundary = facts.rope_regime_boundary
    return boundary is not None and prompt_tokens <= boundary < length
