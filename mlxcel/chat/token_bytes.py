"""From a token's vocabulary piece to the bytes it stands for, so that streams can be decoded token by token.

Two families cover most models: byte-level BPE (GPT-2's printable alphabet for bytes) and SentencePiece (U+2581 for a
space, `<0xE2>` for single bytes). Others are decoded by the tokenizer itself over a small window.
"""

import json
from functools import lru_cache
from typing import Any, Literal

PieceKind = Literal["byte_level", "sentencepiece", "other"]
_SPACE = "\u2581"


@lru_cache(maxsize=1)
def byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's map from a printable character to the byte that it stands for (256 entries)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _decoder_types(decoder: dict[str, Any] | None) -> list[str]:
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [str(part.get("type")) for part in decoder.get("decoders", [])]
    return [str(decoder.get("type"))]


def piece_kind(tokenizer_json: str) -> PieceKind:
    """Tell from a tokenizer.json how its pieces spell bytes."""
    types = _decoder_types(json.loads(tokenizer_json).get("decoder"))
    if types == ["ByteLevel"]:
        return "byte_level"
    if "ByteFallback" in types or types == ["Metaspace"]:
        return "sentencepiece"
    return "other"


def piece_bytes(kind: PieceKind, piece: str) -> bytes:
    """Return the bytes of one vocabulary piece of a known kind."""
    if kind == "byte_level":
        alphabet = byte_level_alphabet()
        if all(char in alphabet for char in piece):
            return bytes(alphabet[char] for char in piece)
        return piece.encode("utf-8")
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            return piece.encode("utf-8")
    return piece.replace(_SPACE, " ").encode("utf-8")
