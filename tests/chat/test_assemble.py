"""Streaming text: complete, never early, never a piece of a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.assemble import StopFinder, TextAssembler
from mlxcel.chat.runtime import ChatRuntime


def run(assembler: TextAssembler, ids: list[int]) -> tuple[list[str], bool]:
    """Push tokens until a stop string completes; returns the pieces of text and whether it stopped."""
    pieces = []
    for token in ids:
        text, stopped = assembler.push(token)
        pieces.append(text)
        if stopped:
            return pieces, True
    return [*pieces, assembler.finish()], False


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_streamed_text_equals_the_whole(runtime: ChatRuntime, text: str) -> None:
    """Token by token gives the text that decoding all at once gives."""
    ids = runtime.tokenizer.encode_rendered(text)
    pieces, _ = run(TextAssembler(runtime.tokenizer, keep=runtime.tokenizer.special_ids), ids)
    assert "".join(pieces) == runtime.tokenizer.decode(ids)


def test_an_unfinished_character_waits(runtime: ChatRuntime) -> None:
    """The bytes of an emoji leave together, with the token that completes it."""
    ids = runtime.tokenizer.encode_rendered("😀")
    assembler = TextAssembler(runtime.tokenizer)
    texts = [assembler.push(token)[0] for token in ids]
    assert len(ids) > 1
    assert texts == [""] * (len(ids) - 1) + ["😀"]


def test_a_cut_character_becomes_a_replacement(runtime: ChatRuntime) -> None:
    """An answer that ends inside a character ends with U+FFFD, as decoding all at once does."""
    ids = runtime.tokenizer.encode_rendered("a😀")[:-1]
    pieces, _ = run(TextAssembler(runtime.tokenizer), ids)
    assert "".join(pieces) == runtime.tokenizer.decode(ids)


def test_special_and_end_tokens_are_silent(runtime: ChatRuntime) -> None:
    """Special tokens leave no text; those that a parser needs do."""
    start = runtime.tokenizer.encode_rendered("<|im_start|>")[0]
    assert TextAssembler(runtime.tokenizer).push(start) == ("", False)
    assert TextAssembler(runtime.tokenizer, keep=[start]).push(start) == ("<|im_start|>", False)


TEXT = "the quick brown 😀 fox jumps over the lazy dog"


@pytest.mark.parametrize("start", range(0, len(TEXT) - 6, 3))
def test_every_stop_string_cuts_before_itself(runtime: ChatRuntime, start: int) -> None:
    """For all substrings of length 1 to 6, the text before their first place comes out and nothing of them (B108)."""
    ids = runtime.tokenizer.encode_rendered(TEXT)
    for size in range(1, 7):
        stop = TEXT[start : start + size]
        assembler = TextAssembler(runtime.tokenizer, [stop])
        pieces, stopped = run(assembler, ids)
        assert stopped
        assert "".join(pieces) == TEXT[: TEXT.find(stop)]
        assert assembler.stop_string == stop
        assert assembler.finish() == ""


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_stopping_does_not_depend_on_how_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    """One character at a time and any other cut give the same text and the same stop string."""

    def outcome(parts: list[str]) -> tuple[str, str]:
        finder, out = StopFinder(stops), ""
        for part in parts:
            out += finder.push(part)
            if finder.found:
                return out, finder.found
        return out + finder.finish(), ""

    cut = data.draw(st.integers(0, len(text)))
    assert outcome(list(text)) == outcome([text[:cut], text[cut:]])


def test_held_text_returns_when_the_stop_string_does_not_come(runtime: ChatRuntime) -> None:
    """Text that only looked like the start of a stop string is given back at the end."""
    ids = runtime.tokenizer.encode_rendered("alpha beta")
    pieces, stopped = run(TextAssembler(runtime.tokenizer, ["beta gamma"]), ids)
    assert not stopped
    assert "".join(pieces) == "alpha beta"


def test_an_empty_stop_string_is_refused() -> None:
    """An empty stop string would stop before the first character."""
    with pytest.raises(ValueError, match="empty"):
        StopFinder([""])
