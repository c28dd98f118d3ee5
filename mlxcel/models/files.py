"""The files that stand beside the weights in an mlx-lm model directory, written from GGUF metadata. No MLX here.

Layouts: config.json and generation_config.json as the transformers library reads them for LlamaForCausalLM;
tokenizer.json as the tokenizers library reads it. GGUF keys: the format's specification in the ggml project.
"""

import json
from pathlib import Path
from typing import Any

Metadata = dict[str, Any]

CONTROL_TOKEN = 3  # GGUF's token type for tokens that are markers, not text
# Pre-tokenisers of GPT-2's family in which each digit stands alone. Others would cut text in other places.
SINGLE_DIGIT_PRETOKENIZERS = frozenset({"smollm"})


def write_all(metadata: Metadata, tied: bool, dtype: str, target: Path) -> None:
    """Write config, generation config, tokenizer and chat template. Raises ValueError if the metadata lacks one."""
    try:
        config = model_config(metadata, tied, dtype)
        tokenizer = tokenizer_json(metadata)
        tokenizer_config = tokenizer_settings(metadata)
    except KeyError as error:
        raise ValueError(f"the GGUF says nothing about {error.args[0]!r}") from error
    _write(target / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(target / "generation_config.json", special)
    _write(target / "tokenizer.json", tokenizer)
    _write(target / "tokenizer_config.json", tokenizer_config)
    template = metadata.get("tokenizer.chat_template")
    if template:
        (target / "chat_template.jinja").write_text(template, "utf-8")


def model_config(metadata: Metadata, tied: bool, dtype: str) -> Metadata:
    """Return config.json for a llama model."""
    heads = metadata["llama.attention.head_count"]
    width = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": width,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.attention.key_length", width // heads),
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "max_position_embeddings": metadata["llama.context_length"],
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", metadata["tokenizer.ggml.eos_token_id"]),
    }


def tokenizer_json(metadata: Metadata) -> Metadata:
    """Return tokenizer.json: byte-level BPE with the merges of the file, digits split one by one before the merges."""
    if metadata["tokenizer.ggml.model"] != "gpt2":
        raise ValueError(f"the tokenizer {metadata['tokenizer.ggml.model']!r} is not handled, only gpt2 is")
    pre = metadata.get("tokenizer.ggml.pre", "smollm")
    if pre not in SINGLE_DIGIT_PRETOKENIZERS:
        raise ValueError(f"the pre-tokenizer {pre!r} is not handled, only smollm is")
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    markers = [index for index, kind in enumerate(types) if kind == CONTROL_TOKEN]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in markers
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_settings(metadata: Metadata) -> Metadata:
    """Return tokenizer_config.json."""
    tokens = metadata["tokenizer.ggml.tokens"]
    end = metadata["tokenizer.ggml.eos_token_id"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[end],
        "pad_token": tokens[metadata.get("tokenizer.ggml.padding_token_id", end)],
        "unk_token": tokens[metadata.get("tokenizer.ggml.unknown_token_id", end)],
    }
    template = metadata.get("tokenizer.chat_template")
    return {**settings, "chat_template": template} if template else settings


def _write(path: Path, value: Metadata) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")
