"""Model families that the guide treats by name. Everything else is asked of the cache objects themselves."""

# Block matching is off by default for these: they keep recurrent state beside KV (guide, "APC").
APC_EXCLUDED = frozenset(
    [
        "jamba",
        "mamba",
        "mamba2",
        "nemotron_h",
        "gated_delta",
        "kimi_linear",
        "kimi_k3",
        "qwen3_next",
        "falcon_mamba",
        "longcat_flash",
        "longcat_flash_ngram",
        "rwkv7",
        "recurrent_gemma",
        "baichuan_m1",
    ]
)
_ARCHITECTURE_MARKS = tuple(name.replace("_", "") for name in APC_EXCLUDED)


def apc_suits(config: dict[str, object]) -> bool:
    """Return False for families of the list, by model_type, text_config.model_type or architecture name."""
    text = config.get("text_config")
    types = [config.get("model_type"), text.get("model_type") if isinstance(text, dict) else None]
    if any(name in APC_EXCLUDED for name in types):
        return False
    named = config.get("architectures")
    names = named if isinstance(named, list) else []
    plain = ["".join(c for c in str(name).lower() if c.isalnum()) for name in names]
    return not any(mark in name for name in plain for mark in _ARCHITECTURE_MARKS)
