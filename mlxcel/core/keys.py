"""Digests that name things: the entry key (guide, v3), the APC block chain, the namespace, and the key of a stored piece.

Layouts of the first two: prompt cache guide, "cache key", with the fine print of its facts sheet (section 4). "field" is a
u64 little-endian byte length followed by the bytes. Strings count as the bytes received (UTF-8).
"""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from blake3 import blake3

from mlxcel.core.tokens import TOKEN_BYTES, count

KEY_TAG = b"mlxcel:prompt-cache:v3"
NO_PARENT = bytes(32)  # the seed of a block chain
BLOCK_TAG = b"mlxcel:apc:block:v1"
MEDIA_TAG = b"mlxcel:prompt-cache:multimodal:v1"
NAMESPACE_TAG = b"mlxcel:namespace:v1"
PIECE_TAG = b"mlxcel:piece:v1"
ANONYMOUS_SESSION = "__mlxcel_anon__"


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _field(text: str) -> bytes:
    raw = text.encode()
    return _u64(len(raw)) + raw


def empty_media_digest() -> bytes:
    """Return the fixed 32-byte digest of a request without media."""
    return blake3(MEDIA_TAG + _u64(0) + _u64(0)).digest()


EMPTY_MEDIA = empty_media_digest()


def entry_digest(
    model_id: str,
    lora_id: str,
    template_sig: str,
    session_key: str,
    rope_regime: int | None,
    media_digest: bytes,
    tokens: bytes,
) -> bytes:
    """Return the guide's 32-byte v3 digest over its seven dimensions; `tokens` are int32 little-endian."""
    rope = b"\x00\x00" if rope_regime is None else bytes((1, rope_regime))
    head = b"".join((KEY_TAG, _field(model_id), _field(lora_id), _field(template_sig), _field(session_key), rope))
    return blake3(b"".join((head, media_digest, _u64(count(tokens)), tokens))).digest()


def block_chain(
    tokens: bytes, block_size: int, media_digest: bytes, algorithm: str = "sha256", parent: bytes = NO_PARENT
) -> list[bytes]:
    """Return the APC chain: one 32-byte hash a block, each over its parent, a trailing partial block included.

    `parent`: the hash of the block before, where `tokens` go on from a chain. Raises ValueError for an algorithm other than
    "sha256" or "blake3".
    """
    digests: dict[str, Callable[[bytes], Any]] = {"sha256": hashlib.sha256, "blake3": blake3}
    if algorithm not in digests:
        raise ValueError(f"apc hash {algorithm!r}: accepted are sha256 and blake3")
    digest = digests[algorithm]
    chain, step = [], block_size * TOKEN_BYTES
    for at in range(0, len(tokens), step):
        block = tokens[at : at + step]
        parent = digest(b"".join((BLOCK_TAG, parent, _u64(count(block)), block, media_digest))).digest()
        chain.append(parent)
    return chain


LAYOUT_PART = "kv_layout"  # the part of a fingerprint that follows from the KV mode


class NamespaceKey(msgspec.Struct, frozen=True):
    """What KV must agree on to be shared. Templates and sessions are not part of it: they name entries, not KV."""

    model_fingerprint: str
    lora_id: str = ""
    rope_regime: int | None = None
    kv_mode: str = "fp"
    media_digest: bytes = EMPTY_MEDIA
    tenant_salt: str = ""
    block_size: int = 16

    def digest(self) -> bytes:
        """Return the 32-byte digest of these fields, in this order."""
        rope = b"\x00\x00" if self.rope_regime is None else bytes((1, self.rope_regime))
        head = (NAMESPACE_TAG, _field(self.model_fingerprint), _field(self.lora_id), rope, _field(self.kv_mode))
        return blake3(b"".join((*head, self.media_digest, _field(self.tenant_salt), _u64(self.block_size)))).digest()

    def relatives(self, fingerprint_parts: dict[str, str]) -> bytes:
        """Return what namespaces share that differ at most in RoPE regime and KV mode: the same text, other numbers.

        KV of another precision has another layout, which is part of the model's fingerprint: `fingerprint_parts` (none:
        unknown) tell the model without it.
        """
        model = self.model_fingerprint
        if fingerprint_parts:
            model = "\n".join(
                f"{name}={fingerprint_parts[name]}" for name in sorted(fingerprint_parts) if name != LAYOUT_PART
            )
        return msgspec.structs.replace(self, model_fingerprint=model, rope_regime=None, kv_mode="").digest()


class PieceHasher:
    """Piece keys along one token sequence: BLAKE3 over (namespace, start, every token before the piece's end).

    The key commits to the whole prefix, so equal keys mean equal KV however the prefix was cut into pieces. Positions must
    be asked for in growing order: the running hash then reads each token once.
    """

    def __init__(self, namespace_digest: bytes, tokens: bytes) -> None:
        self._tokens = tokens
        self._at = 0
        self._running = blake3(PIECE_TAG + namespace_digest)

    def key(self, start: int, stop: int, kind: bytes = b"rows") -> bytes:
        """Return the 32-byte key of the piece that covers tokens [start, stop)."""
        assert self._at <= stop * TOKEN_BYTES, "piece keys must be asked for in growing order"
        self._running.update(self._tokens[self._at : stop * TOKEN_BYTES])
        self._at = stop * TOKEN_BYTES
        final = self._running.copy()
        final.update(_u64(start) + _u64(stop) + kind)
        return final.digest()
