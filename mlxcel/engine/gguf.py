"""Llama-family GGUF files as mlx-lm weights.

MLX reads Q4_0, Q4_1 and Q8_0 tensors as its own affine quantisation in groups of 32, and everything else as floats
(documented for `mx.load`). llama.cpp interleaves the two halves of the rotary dimensions in the rows of the query and
key projections; mlx-lm expects them one after the other, as the model's author published them: the rows are put back.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

GROUP_SIZE = 32

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class GgufWeights(msgspec.Struct, frozen=True):
    """What was written: number of tensors, and whether the output layer shares the embedding's weights."""

    tensors: int
    tied: bool


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the file's metadata as plain Python values. Raises ValueError for what isn't a readable GGUF."""
    return _plain(_load(path)[1])


def convert_weights(path: Path, target: Path, dtype: str, progress: Callable[[int, int], None]) -> GgufWeights:
    """Write `target` (safetensors) with every tensor dequantised to `dtype`, under mlx-lm's names.

    `progress` is called with (tensors done, tensors in all). Raises ValueError for a file that isn't a llama GGUF.
    """
    weights, raw_metadata = _load(path)
    metadata = _plain(raw_metadata)
    if metadata.get("general.architecture", "llama") != "llama":
        raise ValueError(f"the architecture {metadata['general.architecture']!r} is not handled, only llama is")
    heads = {
        "attn_q": int(metadata["llama.attention.head_count"]),
        "attn_k": int(metadata.get("llama.attention.head_count_kv", metadata["llama.attention.head_count"])),
    }
    bases = sorted(key.removesuffix(".weight") for key in weights if key.endswith(".weight"))
    out: dict[str, mx.array] = {}
    with mx.stream(mx.cpu):
        for done, base in enumerate(bases):
            value = _dequantised(weights, base).astype(getattr(mx, dtype))
            part = base.rsplit(".", 1)[-1]
            if part in heads:
                value = _rows_in_halves(value, heads[part])
            name = _name(base) + ".weight"
            out[name] = mx.contiguous(value)
            mx.eval(out[name])
            progress(done + 1, len(bases))
        mx.save_safetensors(str(target), out, metadata={"format": "mlx"})
    return GgufWeights(tensors=len(out), tied="lm_head.weight" not in out)


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("the file does not begin as a GGUF does")
    try:
        weights, metadata = mx.load(str(path), format="gguf", return_metadata=True)
    except RuntimeError as error:
        raise ValueError(f"MLX can't read it: {error}") from error
    assert isinstance(weights, dict), "a GGUF gives named tensors"
    assert isinstance(metadata, dict), "asked for with return_metadata"
    return weights, metadata


def _plain(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}


def _dequantised(weights: dict[str, mx.array], base: str) -> mx.array:
    value = weights[base + ".weight"]
    if base + ".scales" not in weights:
        return value
    scales, biases = weights[base + ".scales"], weights[base + ".biases"]
    # Rows of packed uint32 words: 32 bits hold 32 / bits values, and each scale stands for GROUP_SIZE values.
    bits = value.shape[1] * 32 // (scales.shape[1] * GROUP_SIZE)
    full = mx.float32
    return mx.dequantize(value, scales.astype(full), biases.astype(full), group_size=GROUP_SIZE, bits=bits)


def _rows_in_halves(value: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's row order: (heads, dim / 2, 2, columns) back to (heads, 2, dim / 2, columns)."""
    rows, columns = value.shape
    return value.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _name(base: str) -> str:
    if base in _TOP_NAMES:
        return _TOP_NAMES[base]
    pieces = base.split(".")
    if len(pieces) == 3 and pieces[0] == "blk" and pieces[2] in _LAYER_NAMES:
        return f"model.layers.{pieces[1]}.{_LAYER_NAMES[pieces[2]]}"
    raise ValueError(f"the tensor {base!r} is not part of a llama model")
