"""Tiny models whose rows can be computed in any split: one of each kind of cache. None has experts: a router's choice
between two that are nearly equal would turn a difference in the last bit into another answer."""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import build_engine
from tests.families.build import tiny_config_of
from tests.tinymodels import random_weights, tiny_config

VOCAB = 128
CALM = 0.7  # of the usual tiny weights: logits then spread by about 1, and so do the values that they are summed from
SLOW, PAST_STATE = -4.0, 0.1  # the bias of a state's time step; the weight of its input beside it
_DENSE = {"num_experts": 0, "vocab_size": VOCAB}
_WIDE = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}  # quantised groups need 32 values

# name -> (mlx-lm module, what differs from the tiny config of that module, KV mode)
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", {}, "fp"),
    "gemma3": ("gemma3_text", {"sliding_window": 48, "num_hidden_layers": 2, "sliding_window_pattern": 2}, "fp"),
    "mamba2": ("mamba2", {}, "fp"),
    "qwen3_next": ("qwen3_next", _DENSE, "fp"),
    "deepseek": ("deepseek_v3", {"n_routed_experts": None, "num_hidden_layers": 2}, "fp"),
    "llama-q8": ("llama", _WIDE, "q8g32"),
}


def make_engine(name: str, directory: Path, seed: int = 0) -> MlxEngine:
    """Write the model's directory and return an engine of it."""
    module_name, differs, kv_mode = MODELS[name]
    base = tiny_config_of(module_name) if module_name == "deepseek_v3" else tiny_config(module_name)
    config = {**base, "vocab_size": VOCAB, "eos_token_id": 2, **differs}
    module = importlib.import_module(f"mlx_lm.models.{module_name}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_map_with_path(_calm, random_weights(model.parameters(), seed, mx.float32)))
    model.eval()
    weights = dict(tree_flatten(model.parameters()))
    mx.eval(weights)
    directory.mkdir(parents=True)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return build_engine(directory, model, config, kv_mode=kv_mode)


def _calm(name: str, value: mx.array) -> mx.array:
    """Make the model look far back: recurrent state that decays slowly and is not drowned by what passes it by."""
    if name.endswith("dt_bias"):
        return mx.full(value.shape, SLOW, dtype=value.dtype)
    if name.endswith(".D"):
        return value * PAST_STATE
    return value * CALM if value.ndim > 1 and "embed" not in name else value
