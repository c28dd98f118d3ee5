"""A tiny llama as a GGUF file, with weights that are known."""

from pathlib import Path

import mlx.core as mx

LAYERS, HEADS, KV_HEADS, WIDTH, HIDDEN = 2, 4, 2, 32, 48
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet() -> list[str]:
    """Return GPT-2's 256 printable stand-ins for bytes: printable ones stand for themselves, the rest begin at 256."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) for byte in kept] + [chr(256 + index) for index in range(len(others))]


def interleaved(rows: mx.array, heads: int) -> mx.array:
    """Put rows in llama.cpp's order: the halves of each head's rotary dimensions take turns."""
    count, columns = rows.shape
    return rows.reshape(heads, 2, count // heads // 2, columns).swapaxes(1, 2).reshape(count, columns)


def metadata() -> dict:
    """Return the metadata of the tiny model."""
    tokens = [*SPECIAL, *byte_alphabet(), "he", "ll", "hell"]
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    numbers = {
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.context_length": 512,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.token_type": mx.array(types, dtype=mx.int32),
        "tokenizer.chat_template": TEMPLATE,
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5, dtype=mx.float32),
        "llama.rope.freq_base": mx.array(10000.0, dtype=mx.float32),
        **{key: mx.array(value, dtype=mx.uint32) for key, value in numbers.items()},
    }


def weights() -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Return (weights under GGUF's names and order, the same under mlx-lm's)."""
    mx.random.seed(3)
    vocabulary = len(metadata()["tokenizer.ggml.tokens"])
    gguf = {
        "token_embd.weight": mx.random.normal((vocabulary, WIDTH)),
        "output_norm.weight": mx.random.normal((WIDTH,)),
    }
    plain = {"model.embed_tokens.weight": gguf["token_embd.weight"], "model.norm.weight": gguf["output_norm.weight"]}
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes = [
        ("attn_q", "self_attn.q_proj", (WIDTH, WIDTH), HEADS),
        ("attn_k", "self_attn.k_proj", (kv_width, WIDTH), KV_HEADS),
        ("attn_v", "self_attn.v_proj", (kv_width, WIDTH), 0),
        ("attn_output", "self_attn.o_proj", (WIDTH, WIDTH), 0),
        ("ffn_gate", "mlp.gate_proj", (HIDDEN, WIDTH), 0),
        ("ffn_up", "mlp.up_proj", (HIDDEN, WIDTH), 0),
        ("ffn_down", "mlp.down_proj", (WIDTH, HIDDEN), 0),
        ("attn_norm", "input_layernorm", (WIDTH,), 0),
        ("ffn_norm", "post_attention_layernorm", (WIDTH,), 0),
    ]
    for layer in range(LAYERS):
        for theirs, ours, shape, heads in shapes:
            value = mx.random.normal(shape)
            plain[f"model.layers.{layer}.{ours}.weight"] = value
            gguf[f"blk.{layer}.{theirs}.weight"] = mx.contiguous(interleaved(value, heads)) if heads else value
    return gguf, plain


def write(path: Path, **changes: object) -> dict[str, mx.array]:
    """Write the tiny model to `path`, with metadata changed (None takes a key out); return the weights by our names."""
    gguf, plain = weights()
    values = {**metadata(), **changes}
    mx.save_gguf(str(path), gguf, {key: value for key, value in values.items() if value is not None})
    return plain
