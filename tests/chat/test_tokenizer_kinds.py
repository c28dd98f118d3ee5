"""Tokenizers that are not byte-level: SentencePiece pieces, and a window for all others."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mlxcel.chat.assemble import TextAssembler
from mlxcel.chat.tokenizer import Tokenizer, TokenizerMissing


def save(tokenizer: FastTokenizer, directory: Path) -> Tokenizer:
    """Write and load a tokenizer."""
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({}))
    return Tokenizer(directory)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Llama-2's pipeline: spaces as U+2581, one in front, unknown characters as byte pieces."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = FastTokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return save(tokenizer, tmp_path_factory.mktemp("sp"))


def stream(assembler: TextAssembler, ids: list[int]) -> str:
    """All text of the ids, token by token."""
    return "".join(assembler.push(token)[0] for token in ids) + assembler.finish()


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_sentencepiece_streams_what_it_decodes(sentencepiece: Tokenizer, text: str) -> None:
    """Pieces and byte pieces give the text; a chat drops the space in front, a completion keeps it."""
    ids = sentencepiece.encode_rendered(text)
    assert sentencepiece.kind == "sentencepiece"
    assert stream(TextAssembler(sentencepiece, trim_first_space=True), ids) == text
    assert stream(TextAssembler(sentencepiece), ids) == " " + text


def test_other_tokenizers_decode_in_a_window(tmp_path: Path) -> None:
    """A WordPiece tokenizer, whose pieces join by rule, streams what it decodes as a whole."""
    vocab = {piece: index for index, piece in enumerate(["[UNK]", "hel", "##lo", "wor", "##ld", "a", "##b"])}
    tokenizer = FastTokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    loaded = save(tokenizer, tmp_path)
    ids = loaded.encode_rendered("hello world ab " * 40)
    assert loaded.kind == "other"
    assert stream(TextAssembler(loaded), ids) == loaded.decode(ids) == ("hello world ab " * 40).strip()


def test_a_directory_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    """The fault names the directory."""
    with pytest.raises(TokenizerMissing, match="not a directory"):
        Tokenizer(tmp_path / "nothing")
