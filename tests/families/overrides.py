"""What some architectures need beyond the common small values, and those that can't be built tiny.

Four layers each, so that every kind of layer of a mixed model comes twice where it can.
"""

from typing import Any

_SWA = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_CONV = ["conv", "full_attention", "conv", "full_attention"]
_MAMBA = ["mamba", "attention", "mamba", "attention"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_YARN = {
    **_ROPE,
    "type": "yarn",
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_SU = {"type": "su", "original_max_position_embeddings": 512, "short_factor": 1.0, "long_factor": 1.0}
_ALPHA = {"type": "dynamic", "factor": 1.0, "alpha": 1.0}
_LINEAR = {
    "kda_layers": [1, 3],
    "full_attn_layers": [2, 4],
    "num_heads": 4,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
    "gate_lower_bound": -5.0,
}
_GROUPED = {"layer_group_size": 2, "group_norm_size": 1}


def _packed(path: str, embedding: bool) -> dict[str, Any]:
    return {"path": path, "embedding": embedding, "dtype": "float16", "block": 0}


# Where the arguments of a wrapped text model are: module.class.
TEXT_ARGS: dict[str, str] = {
    "gemma3": "gemma3_text.ModelArgs",
    "gemma3n": "gemma3n.TextConfig",
    "gemma4": "gemma4_text.ModelArgs",
    "kimi_k25": "deepseek_v3.ModelArgs",
    "kimi_k3": "kimi_k3.TextArgs",
    "kimi_vl": "kimi_vl.TextArgs",
    "lfm2-vl": "lfm2.ModelArgs",
    "llama4": "llama4.TextArgs",
    "minimax_m3_vl": "minimax_m3_vl.TextArgs",
    "mistral3": "llama.ModelArgs",
    "muse_spark": "muse_spark.TextArgs",
    "pixtral": "llama.ModelArgs",
    "prism_hadamard_qwen35": "qwen3_5.TextModelArgs",
    "qwen2_vl": "qwen2.ModelArgs",
    "qwen3_5": "qwen3_5.TextModelArgs",
    "qwen3_5_moe": "qwen3_5.TextModelArgs",
    "qwen3_vl": "qwen3.ModelArgs",
    "qwen3_vl_moe": "qwen3_moe.ModelArgs",
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "afmoe": {"layer_types": _SWA, "num_dense_layers": 1},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "bailing_hybrid": _GROUPED,
    "bailing_moe_linear": {**_GROUPED, "num_key_value_heads": 4},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": _YARN, "scoring_func": "softmax", "topk_method": "group_limited_greedy"},
    "deepseek_v41": {
        "head_dim": 16,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 16,
        "compress_ratios": [0, 4, 0, 4],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3],
        "scoring_func": "sqrtsoftplus",
    },
    "exaone4": {"sliding_window_pattern": "LGLG", "rope_scaling": _ROPE},
    "exaone_moe": {"layer_types": _SWA, "is_moe_layer": [False, True, True, True]},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"]},
    "gemma3n": {
        "text_config": {
            "model_type": "gemma3n_text",
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "intermediate_size": [96] * 6,
            "activation_sparsity_pattern": [0.5] * 6,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    "gemma4_text": {"layer_types": _SWA},
    "glm_moe_dsa": {"rope_parameters": _ROPE},
    "gpt_oss": {"layer_types": _SWA},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": _MAMBA, "mamba_proj_bias": False, "mamba_conv_bias": True, "mamba_n_heads": 8},
    "hunyuan": {"use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2, "rope_scaling": _ALPHA},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    "kimi_k3": {
        "text_config": {
            "linear_attn_config": _LINEAR,
            "qk_rope_head_dim": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "attn_res_block_size": 2,
            "activation_situ_beta": 1.0,
            "activation_situ_linear_beta": 1.0,
            "mla_use_nope": True,
        }
    },
    "kimi_linear": {"linear_attn_config": _LINEAR, "num_key_value_heads": 4},
    "lfm2": {
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
    },
    "lfm2_moe": {"use_expert_bias": True, "num_dense_layers": 1, "full_attn_idxs": [1, 3]},
    "llama4": {"text_config": {"interleave_moe_layer_step": 2, "model_type": "llama4_text", "num_experts_per_tok": 1}},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "ngram_vocab_size_ratio": 1},
    "mellum": {
        "layer_types": _SWA,
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "minicpm3": {"rope_scaling": _SU},
    "minimax": {"rotary_dim": 8},
    "minimax_m3_vl": {
        "text_config": {
            "moe_layer_freq": [0, 1, 1, 1],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 16,
            "index_topk_blocks": 2,
            "sparse_attention_freq": [0, 1, 0, 1],
            "dense_intermediate_size": 96,
        }
    },
    "ministral3": {"rope_parameters": _YARN, "layer_types": _SWA},
    "mistral3": {"text_config": {"model_type": "mistral"}},
    "mistral4": {"rope_parameters": _YARN},
    "muse_spark": {
        "text_config": {
            "post_norm_eps": 1e-5,
            "rope_parameters": _ROPE,
            "layer_rope_theta": [10000.0, 0.0, 10000.0, 0.0],
            "layer_types": _SWA,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "moe_hidden_size": 32,
            "num_shared_experts": 0,
        }
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 0.5}},
        ]
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "*", "E", "-"],
        "mamba_proj_bias": False,
        "moe_latent_size": None,
    },
    "olmo3": {"layer_types": _SWA},
    "olmo_hybrid": {"linear_allow_neg_eigval": True, "layer_types": ["linear_attention", "full_attention"] * 2},
    "openelm": {
        "num_transformer_layers": 4,
        "ffn_dim_divisor": 16,
        "num_query_heads": [4, 4, 8, 8],
        "num_kv_heads": [2, 2, 4, 4],
        "ffn_multipliers": [1.0, 1.0, 1.5, 1.5],
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
        "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 2,
        "blocksparse_vert_stride": 2,
    },
    "phixtral": {"rotary_dim": 8},
    "pixtral": {"text_config": {"model_type": "mistral"}},
    "plamo": {"n_shared_head": 2},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [_packed("model.embed_tokens", True), _packed("model.layers.0.mlp.shared_expert.gate_proj", False)],
        "text_config": {"hidden_size": 128},
    },
    "qwen2_vl": {"text_config": {"model_type": "qwen2"}},
    "qwen3_vl": {"text_config": {"model_type": "qwen3"}},
    "qwen3_vl_moe": {"text_config": {"model_type": "qwen3_moe"}},
    "gemma3": {"text_config": {"model_type": "gemma3_text"}},
    "lfm2-vl": {"text_config": {"model_type": "lfm2"}},
    "recurrent_gemma": {
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "num_key_value_heads": 1,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": {"a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8},
    "spark2_5": {
        "layer_types": _SWA,
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "step3p5": {"num_attention_groups": 2},
}

# Architectures that no tiny model is made of, and why.
NOT_BUILT: dict[str, str] = {
    "bitnet": "its linear layers are a Metal kernel; there is no other path, so it runs on Apple silicon only",
    "muse_spark": "its attention norm is a Metal kernel; there is no other path, so it runs on Apple silicon only",
    "phi3small": "its block-sparse attention corrupts memory in MLX 0.32.4 on CPUs and ends the process",
    "olmo": "mlx-lm's module ends the process unless the package ai2-olmo is installed",
}
