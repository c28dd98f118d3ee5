"""Reasoning and tool calls in streaming text: the cut into pieces never matters and nothing is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.output import Content, OutputParser, Reasoning
from mlxcel.chat.reasoning import ReasoningMarks, reasoning_marks, starts_inside
from mlxcel.chat.tool_formats import ToolCall, ToolFormat, tool_format

MARKS = ReasoningMarks("<think>", "</think>")
Parsed = tuple[str, str, list[tuple[str, str]]]


def parse(
    parts: list[str], form: ToolFormat = "none", marks: ReasoningMarks | None = MARKS, inside: bool = False
) -> Parsed:
    """Return reasoning, content and calls of an answer given in pieces."""
    parser = OutputParser(marks, inside, form)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        "".join(piece.text for piece in pieces if isinstance(piece, Content)),
        [(piece.name, piece.arguments) for piece in pieces if isinstance(piece, ToolCall)],
    )


HERMES = '<tool_call>\n{"name": "f", "arguments": {"b":1,  "a":[2]}}\n</tool_call>'
CASES: list[tuple[str, ToolFormat, bool, Parsed]] = [
    ("<think>\nhm\n</think>\n\nyes", "none", False, ("hm", "yes", [])),
    ("hm\n</think>\n\nyes", "none", True, ("hm", "yes", [])),
    ("<think>cut", "none", False, ("cut", "", [])),
    ("a <think> b", "none", False, ("", "a <think> b", [])),
    ("<thin", "none", False, ("", "<thin", [])),
    (f"<think>x</think>ok {HERMES}\n{HERMES}", "hermes", False, ("x", "ok ", [("f", '{"b":1,  "a":[2]}')] * 2)),
    ('<tool_call>{"name": 1}</tool_call>!', "hermes", False, ("", '<tool_call>{"name": 1}</tool_call>!', [])),
    ('<tool_call>{"name": "f", "arguments": {}}', "hermes", False, ("", "", [("f", "{}")])),
    ("a <tool_call> b", "hermes", False, ("", "a <tool_call> b", [])),
    (
        "<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n<parameter=b>\nx y\n</parameter>\n</function>\n"
        "</tool_call>",
        "xml",
        False,
        ("", "", [("f", '{"a": 7, "b": "x y"}')]),
    ),
    ('hi[TOOL_CALLS][{"name": "f", "arguments": {"a":1}}]', "mistral", False, ("", "hi", [("f", '{"a":1}')])),
    ('[TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[ARGS]{}', "mistral", False, ("", "", [("f", '{"a":1}'), ("g", "{}")])),
    ("[TOOL_CALLS] oops", "mistral", False, ("", "[TOOL_CALLS] oops", [])),
    ('{"name": "f", "parameters": {"a": 1}}', "llama3", False, ("", "", [("f", '{"a": 1}')])),
    ('<|python_tag|>{"name": "f", "parameters": {}}', "llama3", False, ("", "", [("f", "{}")])),
    ('{"just": "json"}', "llama3", False, ("", '{"just": "json"}', [])),
]


@pytest.mark.parametrize(("text", "form", "inside", "expected"), CASES)
def test_every_cut_gives_the_same_answer(text: str, form: ToolFormat, inside: bool, expected: Parsed) -> None:
    """Whole, letter by letter, and cut in two at any place: the same reasoning, content and calls."""
    assert parse([text], form, inside=inside) == expected
    assert parse(list(text), form, inside=inside) == expected
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], form, inside=inside) == expected, cut


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["<", "tool_call", ">", "{", "think", "</", "a", " ", "[TOOL_CALLS]"]), max_size=12))
def test_plain_text_is_never_lost(parts: list[str]) -> None:
    """Text without a valid call comes out as it went in, whatever marks it resembles."""
    text = "x" + "".join(parts)
    for form in ("none", "hermes", "mistral"):
        assert parse(parts=["x", *parts], form=form, marks=None) == ("", text, [])


def test_formats_are_told_by_the_template() -> None:
    """The markers in a template's text choose its formats."""
    assert tool_format("... <tool_call> ...") == "hermes"
    assert tool_format("<tool_call> <function=x>") == "xml"
    assert tool_format("[TOOL_CALLS]") == "mistral"
    assert tool_format("<|python_tag|>") == "llama3"
    assert tool_format("plain") == "none"
    assert reasoning_marks("x </think> y") == MARKS
    assert reasoning_marks("plain") is None
    assert starts_inside("...assistant\n<think>\n", MARKS)
    assert not starts_inside("...<think>\n\n</think>\n\n", MARKS)
