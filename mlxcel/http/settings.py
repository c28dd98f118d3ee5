"""What the HTTP side is told at start. Frozen: nothing here changes while the server runs."""

from typing import Any

import msgspec


class ApiKey(msgspec.Struct, frozen=True):
    """One key that opens the API. `salt` separates the cache entries of its holder ("" shares); `tenant` is its name."""

    key: str
    tenant: str = ""
    salt: str = ""

    def __repr__(self) -> str:
        return f"ApiKey(tenant={self.tenant!r})"


class HttpSettings(msgspec.Struct, frozen=True):
    """Limits, keys and defaults of the HTTP API.

    `host` is the address that the server binds: on loopback the Host header is checked against DNS rebinding.
    `allowed_hosts` adds names to that check (and turns it on for other addresses). `admin_key` opens /admin; without
    one /admin answers callers on loopback only.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[ApiKey, ...] = ()
    admin_key: str = ""
    admin_tokens: bool = False  # may /admin show tokens and text
    allowed_hosts: tuple[str, ...] = ()
    metrics: bool = False
    data_dir: str = ""  # whose log /admin/explain, diagnosis and what-if read
    default_max_tokens: int = 2048
    default_temperature: float = 0.8  # sampling defaults are llama-server's
    default_top_p: float = 0.95
    default_top_k: int = 40
    default_min_p: float = 0.05
    max_body_bytes: int = 32 * 1024 * 1024
    max_json_depth: int = 64
    max_stop_strings: int = 16
    first_item_wait_s: float = 1.0  # a stream's headers wait this long, so that early faults get a real status
    ping_interval_s: float = 15.0
    chat_template: str | None = None  # source of a template that replaces the model's own
    chat_template_kwargs: dict[str, Any] = {}
    test_forced_tokens: bool = False  # tests only: a header gives the tokens that the engine emits
    server_name: str = "mlxcel"

    def __repr__(self) -> str:
        """Keys never get into a log or a traceback."""
        return f"HttpSettings(host={self.host!r}, port={self.port}, ...)"
