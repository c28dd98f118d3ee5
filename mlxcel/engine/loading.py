"""Loading a model directory (or hub id) into an engine."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, make_prompt_cache

from mlxcel.engine import facts, kinds, memory, prefill
from mlxcel.engine.adapters import parse_adapter
from mlxcel.engine.digests import DigestCache
from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.errors import ModelLoadError
from mlxcel.engine.fingerprint import fingerprint_parts
from mlxcel.engine.layout import Layout, learn_layout
from mlxcel.engine.probe import batch_fault

PROBE_TOKENS = (1, 2, 3)
KV_MODE = re.compile(r"fp|q(2|4|8)g(32|64|128)")  # bits and group sizes that QuantizedKVCache packs
ADVICE = "Give an mlx-lm model directory (config.json, model*.safetensors, tokenizer.json) or a hub id."


def load_engine(
    path_or_hub_id: str | Path,
    *,
    ctx_size: int = 0,
    dtype: str | None = None,
    kv_mode: str = "fp",
    digest_cache: Path | None = None,
    adapter: str = "",
    progress: Callable[[str], None] = lambda step: None,
) -> MlxEngine:
    """Load a model; the calling thread becomes the engine's thread.

    `ctx_size` caps the context in tokens (0: what the model states). `dtype` ("float32", "bfloat16", "float16") casts
    the weights; None keeps them as stored. `kv_mode`: "fp" or an affine quantisation such as "q8g64" (8 bits, groups of
    64). `adapter`: PATH or PATH:SCALE of a LoRA adapter, served unfused.
    `digest_cache`: a JSON file that remembers weight digests. `progress` is told each step. Raises ModelLoadError.
    """
    path = find_model(path_or_hub_id)
    progress("reading weights")
    model, config = _load_model(path)
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
    memory.wire_limit()
    engine = build_engine(
        path, model, config, ctx_size=ctx_size, kv_mode=kv_mode, digest_cache=digest_cache, progress=progress
    )
    if adapter:
        progress("reading the adapter")
        engine.attach(*parse_adapter(adapter), DigestCache(digest_cache))
    return engine


def build_engine(
    path: Path,
    model: Any,
    config: dict[str, Any],
    *,
    ctx_size: int = 0,
    kv_mode: str = "fp",
    digest_cache: Path | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> MlxEngine:
    """Make an engine of a model that is in memory; `path` is the directory that its weights and config come from.

    Arguments as in `load_engine`. Raises ModelLoadError when the model does not run.
    """
    new_layers = _cache_maker(path, model, kv_mode)
    progress("probing caches")
    layout = _probe(path, model, new_layers)
    progress("hashing weights")
    dtype_name, digests = facts.weights_dtype(model), DigestCache(digest_cache)
    named = fingerprint_parts(path, model, layout.description, dtype_name, digests, progress)
    stated = facts.model_facts(
        path, model, config, layout, new_layers(), named, kv_mode, ctx_size, lambda: batch_fault(model, new_layers)
    )
    return MlxEngine(model, layout, stated, new_layers)


def find_model(path_or_hub_id: str | Path) -> Path:
    """Return the local directory, downloading from the hub what is not there. Raises ModelLoadError."""
    try:
        path = mlx_lm_utils._download(str(path_or_hub_id))
    except Exception as error:
        raise ModelLoadError(path_or_hub_id, f"no such directory, and the hub answered: {error}", ADVICE) from error
    if not (path / "config.json").is_file():
        raise ModelLoadError(path, "there is no config.json", ADVICE)
    return path


def _load_model(path: Path) -> tuple[Any, dict[str, Any]]:
    try:
        return mlx_lm_utils.load_model(path)
    except FileNotFoundError as error:
        raise ModelLoadError(path, str(error), ADVICE) from error
    except (ValueError, TypeError, KeyError, RuntimeError, AttributeError, OSError) as error:
        advice = "Check that the files are complete and that mlx-lm supports this model type."
        raise ModelLoadError(path, f"{type(error).__name__}: {error}", advice) from error


def _cache_maker(path: Path, model: Any, kv_mode: str) -> Callable[[], list[Any]]:
    mode = KV_MODE.fullmatch(kv_mode)
    if mode is None:
        raise ModelLoadError(path, f"KV mode {kv_mode!r} is unknown", "Bits are 2, 4 or 8, groups 32, 64 or 128.")
    if kv_mode == "fp":
        return lambda: make_prompt_cache(model)
    bits, group_size = int(mode[1]), int(mode[2])
    odd = [c for c in make_prompt_cache(model) if type(c) not in (KVCache, ArraysCache)]
    if odd:
        cause = f"KV mode {kv_mode} can't be used with {kinds.class_name(odd[0])} layers"
        raise ModelLoadError(path, cause, "Leave --kv-bits out for this model.")
    return lambda: [
        QuantizedKVCache(group_size, bits) if type(cache) is KVCache else cache for cache in make_prompt_cache(model)
    ]


def _probe(path: Path, model: Any, new_layers: Callable[[], list[Any]]) -> Layout:
    layers = new_layers()
    try:
        prefill.prefill_chunk(model, layers, PROBE_TOKENS)
    except Exception as error:
        advice = "The model loads but does not run; check the config against the weights, and the KV mode."
        raise ModelLoadError(path, f"{type(error).__name__}: {error}", advice) from error
    return learn_layout(layers)
