"""Digest of the images and audio of a request (layout: facts sheet 4.6)."""

from collections.abc import Sequence

from blake3 import blake3

_DOMAIN = b"mlxcel:prompt-cache:multimodal:v1"


def media_digest(images: Sequence[bytes] = (), audio: Sequence[bytes] = ()) -> bytes:
    """Return 32 bytes: BLAKE3 over the decoded bytes in order of arrival, images before audio.

    Layout: domain, then for each kind a u64 little-endian count and, per item, u64 little-endian length + bytes.
    """
    hasher = blake3(_DOMAIN)
    for items in (images, audio):
        hasher.update(len(items).to_bytes(8, "little"))
        for item in items:
            hasher.update(len(item).to_bytes(8, "little"))
            hasher.update(item)
    return hasher.digest()


TEXT_ONLY_DIGEST = media_digest()
