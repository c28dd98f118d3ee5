"""What the codec knows of mlx's dtypes: their size and how they are best coded."""

from typing import Literal

Coding = Literal["raw", "planes2", "planes4", "zstd"]

ITEM_BYTES: dict[str, int] = {
    "bool": 1,
    "bool_": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
}

_FLOAT_CODINGS: dict[str, Coding] = {"bfloat16": "planes2", "float16": "planes2", "float32": "planes4"}


def coding_for(dtype: str) -> Coding:
    """Return the coding to try for a dtype; floats by planes, everything else by zstd level 1."""
    return _FLOAT_CODINGS.get(dtype, "zstd")


def item_bytes(dtype: str) -> int:
    """Return bytes per element. Raises ValueError for a dtype that is not known."""
    size = ITEM_BYTES.get(dtype)
    if size is None:
        raise ValueError(f"dtype {dtype!r} can't be stored; known are {', '.join(sorted(ITEM_BYTES))}")
    return size
