"""Keys and the tenants they stand for. A tenant's salt is derived on this machine, so nobody else can name its entries."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

SECRET_FILE = "tenant-secret"


class TenantKey(msgspec.Struct, frozen=True):
    """One key and whose it is. `salt`: 32 hex characters that separate the tenant's entries from all others."""

    key: str
    tenant: str
    salt: str

    def __repr__(self) -> str:
        return f"TenantKey(tenant={self.tenant!r})"


def tenant_keys(lines: Sequence[str], data_dir: Path) -> tuple[TenantKey, ...]:
    """Return the keys of lines `NAME KEY` or `KEY`. Keys of one name share a tenant; a bare key is a tenant of its own.

    Neither the order of lines nor a restart changes a tenant. The secret is made on first use (mode 0600). Raises OSError.
    """
    if not lines:
        return ()
    secret = _secret(data_dir / SECRET_FILE)
    return tuple(_tenant_key(line, secret) for line in lines)


def _tenant_key(line: str, secret: bytes) -> TenantKey:
    name, _, rest = line.strip().partition(" ")
    key = rest.strip() or name
    if key == name:
        name = "key-" + _derived(secret, "key", key)[:8]
    return TenantKey(key, name, _derived(secret, "tenant", name))


def _derived(secret: bytes, purpose: str, text: str) -> str:
    return hmac.new(secret, f"{purpose}:{text}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:32]


def _secret(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        held = path.read_bytes()
        if len(held) < 32:
            raise OSError(f"{path} is not a secret of 32 bytes; remove it to make a new one") from None
        return held
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    return path.read_bytes()
