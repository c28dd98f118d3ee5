"""What the rest of the program may know about a loaded model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxcel.engine import kinds
from mlxcel.engine.fingerprint import combine
from mlxcel.engine.known import NO_REUSE, module_name
from mlxcel.engine.layout import Layout
from mlxcel.ports import Lane, ModelFacts

UNSTATED_CONTEXT = 131_072  # for configs that name no limit (recurrent models have none)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "model_max_length", "seq_length")


def model_facts(
    path: Path,
    model: Any,
    config: dict[str, Any],
    layout: Layout,
    fresh: Sequence[Any],
    named: dict[str, str],
    kv_mode: str,
    ctx_size: int,
    batch_fault: Callable[[], str] = lambda: "",
) -> ModelFacts:
    """Return what the rest of the program may know; `fresh` is an unused cache, `named` the fingerprint's parts.

    `batch_fault` tries a batch and says why it can't be used; asked only where the caches allow one.
    """
    text = {**config, **config.get("text_config", {})}
    reuse, refusal = layout.reuse()
    if why := NO_REUSE.get(module_name(model)):
        reuse, refusal = "none", why
    lane, lane_reason = lane_of(fresh, layout.unwritten())
    if lane == "batched" and (fault := batch_fault()):
        lane, lane_reason = "sequential", fault
    stated = next((int(text[key]) for key in CONTEXT_KEYS if text.get(key)), UNSTATED_CONTEXT)
    return ModelFacts(
        name=path.resolve().name,
        path=str(path),
        model_type=str(config.get("model_type", "")),
        fingerprint=combine(named),
        fingerprint_parts=named,
        context_tokens=min(stated, ctx_size) if ctx_size > 0 else stated,
        vocab_size=int(text.get("vocab_size", 0)),
        eos_token_ids=eos_token_ids(path, text),
        kv_bytes_per_token=layout.bytes_per_token,
        kv_mode=kv_mode,
        reuse=reuse,
        reuse_refusal=refusal,
        lane=lane,
        lane_reason=lane_reason,
        layers=layout.classes,
        dtype=weights_dtype(model),
        weights_bytes=sum(array.nbytes for _, array in tree_flatten(model.parameters())),
        rope_regime_boundary=None,  # mlx-lm's SuScaledRoPE uses the long table at every length
    )


def weights_dtype(model: Any) -> str:
    """Return mlx's name of the first floating weight's dtype (quantised weights are integers with floating scales)."""
    dtypes = (array.dtype for _, array in tree_flatten(model.parameters()))
    return str(next(dtype for dtype in dtypes if mx.issubdtype(dtype, mx.floating))).removeprefix("mlx.core.")


def lane_of(fresh: Sequence[Any], unwritten: str) -> tuple[Lane, str]:
    """Return the decode lane that this model's caches allow, and why. `unwritten`: see `Layout.unwritten`."""
    if unwritten:
        return "sequential", f"{unwritten} that the model leaves partly unused can't be batched"
    for _, leaf in kinds.leaves(fresh):
        if refusal := kinds.merge_refusal(leaf):
            return "sequential", refusal
    return "batched", "every cache can be merged"


def eos_token_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids that end an answer: of config.json, generation_config.json and tokenizer_config.json together."""
    stated = config.get("eos_token_id")
    found = set() if stated is None else set(stated if isinstance(stated, list) else [stated])
    settings, vocabulary = path / "tokenizer_config.json", path / "tokenizer.json"
    if settings.exists() and vocabulary.exists():
        token = json.loads(settings.read_text(encoding="utf-8")).get("eos_token")
        name = token.get("content") if isinstance(token, dict) else token
        added = json.loads(vocabulary.read_text(encoding="utf-8")).get("added_tokens", [])
        found |= {entry["id"] for entry in added if entry["content"] == name}
    return tuple(sorted(found))
