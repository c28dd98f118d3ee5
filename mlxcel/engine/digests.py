"""Content digests of big files, remembered between starts.

A remembered digest counts only while size, modification and change time, inode and a hash of samples all match: other
contents under the same name with the same size and modification time must be found.
"""

import contextlib
import json
import logging
import os
from pathlib import Path

from blake3 import blake3

log = logging.getLogger(__name__)

SAMPLES = 32
SAMPLE_BYTES = 64 * 1024
HUB_DIGEST_CHARS = 64  # the hub names blobs of large files by their SHA-256


class DigestCache:
    """Digests of files; `store` is a small JSON file (mode 0600), or None to remember nothing."""

    def __init__(self, store: Path | None) -> None:
        self._store = store
        self._known: dict[str, dict[str, object]] = self._load()

    def digest(self, file: Path) -> str:
        """Return the digest of the file's content, computed at most once for the same file. Raises OSError."""
        identity = _identity(file)
        known = self._known.get(str(file.absolute()))
        if known is not None and known.get("identity") == identity:
            return str(known["digest"])
        digest = hub_content_name(file) or _whole(file)
        self._known[str(file.absolute())] = {"identity": identity, "digest": digest}
        self._save()
        return digest

    def _load(self) -> dict[str, dict[str, object]]:
        if self._store is None or not self._store.exists():
            return {}
        try:
            known = json.loads(self._store.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            log.warning("digests in %s can't be read (%s); they are computed again", self._store, error)
            return {}
        return known if isinstance(known, dict) else {}

    def _save(self) -> None:
        if self._store is None:
            return
        part = self._store.with_name(f"{self._store.name}.{os.getpid()}.part")
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(self._known, out, indent=1, sort_keys=True)
            part.replace(self._store)
        except OSError as error:
            log.warning("digests can't be kept in %s (%s); the next start computes them again", self._store, error)
            with contextlib.suppress(FileNotFoundError):
                part.unlink()


def hub_content_name(file: Path) -> str:
    """Return `hub:` and the SHA-256 under which a hub cache holds the file, or "" when the file is no such link."""
    if not file.is_symlink():
        return ""
    target = file.resolve()
    name = target.name
    named = len(name) == HUB_DIGEST_CHARS and all(char in "0123456789abcdef" for char in name)
    return f"hub:{name}:{_sampled(target)}" if named and target.parent.name == "blobs" else ""


def _identity(file: Path) -> list[object]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, _sampled(file)]


def _sampled(file: Path) -> str:
    """Hash evenly spaced samples, the first and last bytes among them."""
    size = file.stat().st_size
    hasher = blake3(size.to_bytes(8, "little"))
    last = max(0, size - SAMPLE_BYTES)
    with file.open("rb") as content:
        for index in range(SAMPLES):
            content.seek(last * index // (SAMPLES - 1))
            hasher.update(content.read(SAMPLE_BYTES))
    return hasher.hexdigest()


def _whole(file: Path) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(file)
    return hasher.hexdigest()
