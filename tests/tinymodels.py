"""Tiny random-weight mlx-lm model directories: real model code, real caches, a real tokenizer, in well under 2 s.

`write_tiny_model(kind, out_dir, seed=...)` writes config, weights, tokenizer and generation config. The same
arguments always write the same bytes of weights. Kinds: see `CONFIGS`.
"""

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 512
BOS, EOS = "<|im_start|>", "<|im_end|>"
SPECIAL = ("<|endoftext|>", BOS, EOS)  # ids 0, 1, 2 as in SmolLM2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = """The quick brown fox jumps over the lazy dog while five wizards box quickly and the old house stands alone.
A prompt cache keeps the keys and values of tokens that were read before, so that the same words are never read twice.
Once upon a time there was a small model that could not say anything useful, but it was fast and always the same.
def add(first, second): return first + second  # numbers 0 1 2 3 4 5 6 7 8 9, symbols {} [] () <> == != += * / % & |
You are a helpful assistant. What is the capital of France? Answer with one word. system user assistant tool function
"""

_ATTENTION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
}
_CONV_HEADS = {"num_heads": 4, "head_dim": 32, "state_size": 16, "conv_kernel": 4, "n_groups": 1}

# kind -> (default layers, config without the common keys)
CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "llama": (2, {**_ATTENTION, "tie_word_embeddings": False}),
    "qwen3": (2, {**_ATTENTION, "tie_word_embeddings": False}),
    "gemma3_text": (
        3,
        {
            **_ATTENTION,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 16.0,
            "sliding_window": 32,
            "sliding_window_pattern": 3,
        },
    ),
    "gemma4_text": (
        4,
        {
            **_ATTENTION,
            "global_head_dim": 16,
            "num_global_key_value_heads": 2,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "sliding_window": 32,
            "sliding_window_pattern": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "qwen3_next": (
        2,
        {
            **_ATTENTION,
            "full_attention_interval": 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [],
            "moe_intermediate_size": 32,
            "partial_rotary_factor": 0.5,
            "norm_topk_prob": True,
        },
    ),
    "mamba2": (
        2,
        {
            **_CONV_HEADS,
            "hidden_size": 64,
            "intermediate_size": 128,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": False,
            "time_step_limit": [0.0, 100.0],
            "time_step_rank": "auto",
            "chunk_size": 64,
        },
    ),
    "lfm2": (
        2,
        {
            **_ATTENTION,
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 96,
            "full_attn_idxs": [1],
        },
    ),
    "falcon_h1": (
        2,
        {
            **_ATTENTION,
            "attention_bias": False,
            "mlp_bias": False,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 16,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 4,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": False,
            "mamba_rms_norm": False,
            "mamba_use_mlp": True,
            "projectors_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_oss": (
        2,
        {
            **_ATTENTION,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "nemotron_h": (
        3,
        {
            **_ATTENTION,
            "attention_bias": False,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "mamba_proj_bias": False,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "n_groups": 1,
            "mlp_bias": False,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "hybrid_override_pattern": ["M", "*", "-"],
        },
    ),
    "llama4": (
        4,
        {
            "text_config": {
                **_ATTENTION,
                "model_type": "llama4_text",
                "rope_scaling": None,
                "attention_bias": False,
                "attention_chunk_size": 32,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 96,
                "num_experts_per_tok": 1,
                "num_local_experts": 2,
                "use_qk_norm": True,
            }
        },
    ),
}


def write_tiny_model(
    kind: str,
    out_dir: Path,
    seed: int = 0,
    layers: int | None = None,
    dtype: str = "float32",
    overrides: dict[str, Any] | None = None,
) -> Path:
    """Write a model directory of one of `CONFIGS`; `layers` None is the kind's default, `overrides` go into
    config.json (top level). Returns `out_dir`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    config = {**tiny_config(kind, layers), **(overrides or {})}
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(seed)  # some modules draw their own vectors (decay rates, time steps)
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(random_weights(model.parameters(), seed, getattr(mx, dtype))))
    mx.eval(weights)
    mx.save_safetensors(str(out_dir / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(out_dir / "config.json", config)
    _write_json(out_dir / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    (out_dir / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "unk_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(out_dir / "tokenizer_config.json", settings)
    return out_dir


def tiny_config(kind: str, layers: int | None = None) -> dict[str, Any]:
    """Return the config.json of a kind as a dict."""
    default_layers, own = CONFIGS[kind]
    common = {"num_hidden_layers": layers or default_layers, "vocab_size": VOCAB}
    config = {"model_type": kind, "bos_token_id": 1, "eos_token_id": 2, **own}
    if "text_config" in own:
        return {**config, "text_config": {**own["text_config"], **common}}
    return {**config, **common}


@cache
def tokenizer_json() -> str:
    """Return the JSON of a byte-level BPE tokenizer of at most `VOCAB` tokens that reads any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return tokenizer.to_str()


def random_weights(parameters: Any, seed: int, dtype: mx.Dtype) -> Any:
    """Draw matrices at a scale where attention matters and answers vary; vectors (norms, biases) stay as made.

    Packed weights (uint32) are drawn bit by bit."""
    key = mx.random.key(seed)

    def draw(name: str, value: mx.array) -> mx.array:
        nonlocal key
        if value.dtype == mx.uint32:
            key, now = mx.random.split(key)
            return mx.random.randint(0, 1 << 31, value.shape, dtype=mx.uint32, key=now)
        if value.ndim < 2 or not mx.issubdtype(value.dtype, mx.floating):
            return value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        key, now = mx.random.split(key)
        scale = 1.0 if "embed" in name else 1.6 / value.shape[-1] ** 0.5
        if "conv" in name:
            scale = 0.5
        return (mx.random.normal(value.shape, key=now) * scale).astype(dtype)

    return tree_map_with_path(draw, parameters)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2), encoding="utf-8")
