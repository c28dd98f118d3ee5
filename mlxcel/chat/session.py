"""Which bucket of the cache a request names (guide: session_key; facts sheet 4.3)."""

ANONYMOUS_SESSION = "__mlxcel_anon__"


def session_key(prompt_cache_key: str | None, user: str | None) -> str:
    """Return the first non-empty of `prompt_cache_key` and `user`, else the shared anonymous key."""
    return prompt_cache_key or user or ANONYMOUS_SESSION
