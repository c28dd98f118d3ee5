"""Loading a model directory (or hub id) into an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from mlxcel.engine import facts, kinds, memory, prefill
from mlxcel.engine.digests import DigestCache
from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.errors import ModelLoadError
from mlxcel.engine.fingerprint import fingerprint_parts
from mlxcel.engine.layout import Layout, learn_layout
from mlxcel.engine.probe import batch_fault

PROBE_TOKENS = (1, 2, 3)
KV_MODES = {"fp": None, "q8g64": (64, 8), "q4g64": (64, 4), "q8g32": (32, 8), "q4g32": (32, 4)}
ADVICE = "Give an mlx-lm model directory (config.json, model*.safetensors, tokenizer.json) or a hub id."


def load_engine(
    path_or_hub_id: str | Path,
    *,
    ctx_size: int = 0,
    dtype: str | None = None,
    kv_mode: str = "fp",
    digest_cache: Path | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> MlxEngine:
    """Load a model; the calling thread becomes the engine's thread.

    `ctx_size` caps the context in tokens (0: what the model states). `dtype` ("float32", "bfloat16", "float16") casts
    the weights; None keeps them as stored. `kv_mode`: "fp" or an affine quantisation such as "q8g64" (8 bits, groups of
    64). `digest_cache`: a JSON file that remembers weight digests. `progress` is told each step. Raises ModelLoadError.
    """
    path = find_model(path_or_hub_id)
    progress("reading weights")
    model, config = _load_model(path)
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
    memory.wire_limit()
    return build_engine(
        path, model, config, ctx_size=ctx_size, kv_mode=kv_mode, digest_cache=digest_cache, progress=progress
    )


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
    if kv_mode not in KV_MODES:
        raise ModelLoadError(path, f"KV mode {kv_mode!r} is unknown", f"Known modes: {', '.join(KV_MODES)}.")
    quantised = KV_MODES[kv_mode]
    if quantised is None:
        return lambda: make_prompt_cache(model)
    group_size, bits = quantised
    odd = [kinds.class_name(cache) for cache in make_prompt_cache(model) if type(cache) is not KVCache]
    if odd:
        raise ModelLoadError(path, f"KV mode {kv_mode} can't be used with {odd[0]} layers", "Use KV mode fp.")
    return lambda: [QuantizedKVCache(group_size, bits) for _ in make_prompt_cache(model)]


def _probe(path: Path, model: Any, new_layers: Callable[[], list[Any]]) -> Layout:
    layers = new_layers()
    try:
        prefill.prefill_chunk(model, layers, PROBE_TOKENS)
    except Exception as error:
        advice = "The model loads but does not run; check the config against the weights, and the KV mode."
        raise ModelLoadError(path, f"{type(error).__name__}: {error}", advice) from error
    return learn_layout(layers)
