"""The model fingerprint: what stored KV depends on, in named parts, so that a change can be named.

Parts: `weights` (file contents), `config`, `tokenizer` (without the chat template), `kv_layout`, `model_code` and
`cache_code` (the mlx-lm sources that compute and hold the KV), `dtype`. Digests are BLAKE3, hex. The version of mlx
itself is no part: an upgrade of it keeps stored KV.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blake3 import blake3
from mlx_lm.models import base as model_base
from mlx_lm.models import cache as cache_module

from mlxcel.engine.digests import DigestCache

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
TEMPLATE_KEYS = ("chat_template",)


def fingerprint_parts(
    path: Path, model: Any, layout_text: str, dtype: str, digests: DigestCache, progress: Callable[[str], None]
) -> dict[str, str]:
    """Return part name -> digest. Reads every weight file once unless `digests` remembers it."""
    return {
        "weights": weights_digest(path, digests, progress),
        "config": canonical_json_digest(path / "config.json", ()),
        "tokenizer": tokenizer_digest(path),
        "kv_layout": hex_digest([layout_text.encode()]),
        "model_code": model_code_digest(model),
        "cache_code": source_digest([cache_module]),
        "dtype": hex_digest([dtype.encode()]),
    }


def combine(parts: dict[str, str]) -> str:
    """Return the fingerprint of named parts: 64 hex digits, independent of their order."""
    return hex_digest(f"{name}={digest}\n".encode() for name, digest in sorted(parts.items()))


def weights_digest(path: Path, digests: DigestCache, progress: Callable[[str], None]) -> str:
    """Return the digest of names and contents of all `model*.safetensors` (what mlx-lm loads) under `path`."""
    lines = []
    for file in sorted(path.glob("model*.safetensors")):
        progress(file.name)
        lines.append(f"{file.name} {digests.digest(file)}\n".encode())
    return hex_digest(lines)


def tokenizer_digest(path: Path) -> str:
    """Return the digest of the files that map text to tokens; templates and their settings are left out."""
    lines = [f"{n} {hex_digest([(path / n).read_bytes()])}\n".encode() for n in TOKENIZER_FILES if (path / n).exists()]
    settings = path / "tokenizer_config.json"
    if settings.exists():
        lines.append(canonical_json_digest(settings, TEMPLATE_KEYS).encode())
    return hex_digest(lines)


def canonical_json_digest(file: Path, without: Iterable[str]) -> str:
    """Return the digest of a JSON object whatever its spacing and key order, without the keys named."""
    value = json.loads(file.read_text(encoding="utf-8"))
    for key in without:
        value.pop(key, None)
    return hex_digest([json.dumps(value, sort_keys=True, separators=(",", ":")).encode()])


def model_code_digest(model: Any) -> str:
    """Return the digest of the sources of every module class in the model, and of mlx-lm's attention helpers."""
    names = {type(module).__module__ for module in model.modules()}
    # mlx itself is left out on purpose: its upgrades keep stored KV.
    used = {name for name in names if not name.startswith("mlx.")}
    return source_digest([model_base, *(sys.modules[name] for name in sorted(used) if name in sys.modules)])


def source_digest(modules: Iterable[Any]) -> str:
    """Return the digest of module sources, by module name."""
    sources = {module.__name__: inspect.getsource(module) for module in modules}
    return hex_digest(f"{name}\n{text}\n".encode() for name, text in sorted(sources.items()))


def hex_digest(chunks: Iterable[bytes]) -> str:
    """Return BLAKE3 of the chunks, 64 hex digits."""
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()
