"""A model directory's tokenizer without MLX: text to ids, ids to text, and the bytes of each token.

`tokenizers` alone loads a tokenizer.json in a tenth of a second; `transformers` needs a whole second to import, so it
is imported only for directories that have no tokenizer.json.
"""

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mlxcel.chat.token_bytes import PieceKind, piece_bytes, piece_kind


class TokenizerMissing(Exception):
    """The directory has no tokenizer that can be loaded; the message says what was looked for."""


def pack_tokens(ids: Iterable[int]) -> bytes:
    """Return token ids as int32 little-endian bytes, the form in which tokens cross between rooms."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(tokens: bytes) -> list[int]:
    """Return the ids of int32 little-endian bytes."""
    unpacked = array("i")
    unpacked.frombytes(tokens)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


class _Backend(Protocol):
    kind: PieceKind
    added: dict[int, tuple[str, bool]]  # id -> (text, special)
    vocab_size: int

    def encode(self, text: str, add_special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...

    def piece(self, token: int) -> str | None: ...


class _FastBackend:
    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as FastTokenizer

        source = path.read_text(encoding="utf-8")
        self._tokenizer = FastTokenizer.from_str(source)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.kind: PieceKind = piece_kind(source)
        self.added = {
            number: (token.content, token.special)
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def piece(self, token: int) -> str | None:
        piece: str | None = self._tokenizer.id_to_token(token)
        return piece


class _TransformersBackend:
    kind: PieceKind = "other"

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        self.added = {
            number: (token.content, token.special) for number, token in self._tokenizer.added_tokens_decoder.items()
        }
        self.vocab_size = len(self._tokenizer)

    def encode(self, text: str, add_special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special))

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def piece(self, token: int) -> str | None:
        return self._tokenizer.convert_ids_to_tokens(token)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _token_text(value: Any) -> str | None:
    """Token entries of tokenizer_config.json are a string or an object with `content`."""
    return value.get("content") if isinstance(value, dict) else value


_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Encode, decode and look up tokens of one model directory. Thread-safe: it holds no state of a request."""

    def __init__(self, directory: Path) -> None:
        """Raises TokenizerMissing when the directory holds no tokenizer that can be loaded."""
        if not directory.is_dir():
            raise TokenizerMissing(f"{directory} is not a directory")
        fast = directory / "tokenizer.json"
        try:
            self._backend: _Backend = _FastBackend(fast) if fast.is_file() else _TransformersBackend(directory)
        except (OSError, ValueError, ImportError) as fault:
            raise TokenizerMissing(f"no tokenizer could be loaded from {directory}: {fault}") from fault
        self._config = _read_json(directory / "tokenizer_config.json")
        self.kind = self._backend.kind
        self.vocab_size = self._backend.vocab_size
        self.added = self._backend.added
        # Text on both sides of these is encoded independently. Added runs of spaces (GPT-NeoX) would not do.
        self.split_texts = tuple(text for text, special in self.added.values() if special and not text.isspace())
        self.special_ids = frozenset(number for number, (_, special) in self.added.items() if special)
        self.special_names = {
            name: text for name in _SPECIAL_NAMES if (text := _token_text(self._config.get(name))) is not None
        }
        self.bos_id = self._id_of(self.special_names.get("bos_token"))
        self.eos_ids = self._read_eos_ids(directory)

    def _id_of(self, text: str | None) -> int | None:
        return next((number for number, (added, _) in self.added.items() if added == text), None)

    def _read_eos_ids(self, directory: Path) -> frozenset[int]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_json(directory / name).get("eos_token_id")
            found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
        if (named := self._id_of(self.special_names.get("eos_token"))) is not None:
            found.add(named)
        return frozenset(found)

    def encode_rendered(self, text: str) -> list[int]:
        """Encode a rendered chat: the template has written BOS already, so nothing is added."""
        return self._backend.encode(text, False)

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a plain prompt as a completion takes it: one BOS where the model wants one, never two.

        A prompt that already begins with the text of BOS keeps that one.
        """
        ids = self._backend.encode(text, True)
        bos = self.bos_id
        if bos is None:
            return ids
        if self._config.get("add_bos_token") is True and ids[:1] != [bos]:
            ids.insert(0, bos)
        while ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Decode ids; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(ids, skip_special)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of one token, special tokens spelled out; an id outside the vocabulary gives b""."""
        if token in self.added:
            return self.added[token][0].encode("utf-8")
        if self.kind == "other":
            return self.decode([token]).encode("utf-8")
        piece = self._backend.piece(token)
        return b"" if piece is None else piece_bytes(self.kind, piece)

    def splits_at_added_tokens(self) -> bool:
        """True when text on both sides of an added token is encoded independently (no prefix space is added)."""
        return self.kind == "byte_level"
