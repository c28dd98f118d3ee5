"""A tiny random-weight model of any mlx-lm architecture, from its own `ModelArgs`.

`SMALL` gives a small value for each field name that the architectures share; a model's fields are filled from it where
it knows the name, and keep their own default otherwise. What a family needs beyond that stands in `overrides.py`.
"""

import copy
import dataclasses
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten
from mlx_lm.models.base import BaseModelArgs

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import build_engine
from tests.families.overrides import OVERRIDES, TEXT_ARGS
from tests.tinymodels import random_weights

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WINDOW, EXPERTS = 4, 64, 4, 2, 16, 32, 4
VOCAB = 512

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "num_vocab", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim", "block_dim"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), HEADS),
    **dict.fromkeys(
        ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "swa_num_key_value_heads", "num_global_key_value_heads"),
        KV_HEADS,
    ),
    **dict.fromkeys(("head_dim", "kv_channels", "swa_head_dim", "swa_v_head_dim", "global_head_dim"), HEAD_DIM),
    **dict.fromkeys(
        ("intermediate_size", "ffn_hidden_size", "n_inner", "ff_intermediate_size", "intermediate_size_mlp"), 96
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 32
    ),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size", "share_expert_dim", "block_ff_dim"), 32),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num"), EXPERTS
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"), 2
    ),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "window_size"), WINDOW),
    **dict.fromkeys(("attention_chunk_size",), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "model_max_length", "n_positions", "n_ctx", "block_size"), 2048),
    **dict.fromkeys(("original_max_position_embeddings",), 2048),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "layernorm_epsilon", "norm_epsilon"), 1e-5
    ),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "swa_rope_theta", "rope_local_base_freq"), 10000.0),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization"), None),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "tie_word_embeddings", "use_qkv_bias", "bias"), False),
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5,
    "sliding_window_pattern": 2,
    "full_attention_interval": 2,
    "query_pre_attn_scalar": 16.0,
    "conv_kernel": 4,
    "conv_L_cache": 3,
    "conv_bias": False,
    "use_conv_bias": True,
    "state_size": 16,
    "ssm_state_size": 16,
    "n_groups": 1,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "mamba_chunk_size": 64,
    "mamba_dt_rank": 8,
    "time_step_rank": 8,
    "time_step_limit": [0.0, 100.0],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 16,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 8,
    "no_rope_layers": [1, 1, 1, 0],
    "logits_scaling": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "num_nextn_predict_layers": 0,
    "dim_model_base": 64,
    "scale_depth": 1.4,
    "scale_emb": 1.0,
    "pad_token_id": 0,
    "use_qk_norm": True,
}


def architectures() -> list[str]:
    """Return every module of the installed mlx_lm.models that defines an architecture (its text says so)."""
    root = Path(mlx_lm.models.__path__[0])
    names = sorted(module.name for module in pkgutil.iter_modules([str(root)]))
    return [name for name in names if "class ModelArgs" in (root / f"{name}.py").read_text(encoding="utf-8")]


def tiny_config_of(name: str) -> dict[str, Any]:
    """Return a config.json for the architecture `name`. Raises what importing the module raises."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = {"model_type": name, "vocab_size": VOCAB, "eos_token_id": 2, **_filled(module.ModelArgs)}
    if name in TEXT_ARGS:
        where, cls = TEXT_ARGS[name].rsplit(".", 1)
        inner = importlib.import_module(f"mlx_lm.models.{where}")
        config["text_config"] = {"vocab_size": VOCAB, **_filled(getattr(inner, cls)), **OVERRIDES.get(where, {})}
    return {**config, **_merged(config, OVERRIDES.get(name, {}))}


def _merged(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    if "text_config" in own and "text_config" in config:
        return {**own, "text_config": {**config["text_config"], **own["text_config"]}}
    return own


def _filled(args: type[BaseModelArgs]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(args):
        if field.name == "model_type":
            continue
        if field.name in SMALL:
            if SMALL[field.name] is not None or field.default is dataclasses.MISSING:
                values[field.name] = SMALL[field.name]
        elif field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
    return {key: value for key, value in values.items() if _plain(value)}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))


def write_family(name: str, parent: Path, seed: int = 0) -> Path:
    """Write config.json and the weights, as the module itself names them, into `parent`/`name`; returns that."""
    directory = parent / name
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config_of(name)
    model = _model(name, config, seed)
    weights = dict(tree_flatten(random_weights(model.parameters(), seed, mx.float32)))
    mx.eval(weights)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return directory


def family_engine(directory: Path, kv_mode: str = "fp") -> MlxEngine:
    """Return an engine of what `write_family` wrote. Goes past mlx-lm's loader, whose renaming of weights expects
    those of other libraries."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    model = _model(directory.name, config, 0)
    model.load_weights(list(mx.load(str(directory / "model.safetensors")).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return build_engine(directory, model, config, kv_mode=kv_mode)


def _model(name: str, config: dict[str, Any], seed: int) -> Any:
    mx.random.seed(seed)  # some modules draw their own vectors
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
