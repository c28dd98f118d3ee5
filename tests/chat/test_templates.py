"""Rendering agrees with transformers; tokens have one BOS; boundaries agree with the next turn."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.boundaries import BoundaryFinder
from mlxcel.chat.runtime import ChatRuntime
from mlxcel.chat.templates import ChatTemplate, TemplateMissing, TemplateRefused
from mlxcel.chat.tokenizer import Tokenizer, pack_tokens, unpack_tokens
from tests.chat.tiny_tokenizer import CHATML, write_model_directory

USER = {"role": "user", "content": "the quick <b> 가 fox"}
ANSWER = {"role": "assistant", "content": "<think>\nlazy dog\n</think>\n\nhello world"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é<"}}}]
STRIPS_THINKING = (  # scaffold only in the generation prompt, and thinking dropped from history (B043 a, b)
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].lstrip() }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
FEATURES = (
    "{{ bos_token }}{% for m in messages %}\n    {% if loop.index > 5 %}{% break %}{% endif %}\n"
    "  {%- generation %}{{ m['content'] | trim }}{% endgeneration %}\n{% endfor %}"
    "{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{{ tools | tojson(indent=2) }}{{ kw }}"
)


@pytest.mark.parametrize("source", [CHATML, STRIPS_THINKING, FEATURES], ids=["chatml", "strips thinking", "features"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_rendering_equals_transformers(tmp_path: Path, source: str, tools: list[dict[str, Any]] | None) -> None:
    """Prompt and ids are those of transformers' apply_chat_template (B046)."""
    from transformers import PreTrainedTokenizerFast

    directory = write_model_directory(tmp_path, source, with_bos=True)
    theirs = PreTrainedTokenizerFast.from_pretrained(str(directory))
    ours = ChatRuntime(directory, default_kwargs={"kw": "v"})
    messages = [USER, ANSWER, USER]
    expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True, kw="v")
    chat = ours.render_chat(messages, tools)
    assert chat.text == expected
    assert unpack_tokens(chat.tokens) == theirs.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize("in_config", [None, True])
def test_a_completion_has_one_bos(tmp_path: Path, in_config: bool | None) -> None:
    """With and without the text of BOS in front, a plain prompt begins with exactly one (B046)."""
    tokenizer = Tokenizer(write_model_directory(tmp_path, None, with_bos=in_config is None, bos_in_config=in_config))
    bos = tokenizer.bos_id
    for text in ("hello", "<s>hello"):
        ids = tokenizer.encode_prompt(text)
        assert ids[0] == bos
        assert ids.count(bos) == 1


def test_tokens_cross_as_little_endian_int32() -> None:
    """Token 258 is the bytes 02 01 00 00."""
    assert pack_tokens([258, 1]) == b"\x02\x01\x00\x00\x01\x00\x00\x00"
    assert unpack_tokens(pack_tokens([258, 1])) == [258, 1]


def test_a_date_in_the_template_comes_from_the_clock_given() -> None:
    """strftime_now reads the injected clock, so that a render can be repeated (B045)."""
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: datetime(2024, 2, 29))
    assert template.render([USER]) == "29 Feb 2024"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no systems here') }}",
        "{{ messages[9].content.x }}",
        "{{ ''.__class__.mro() }}",
        "{{ 1 // 0 }}",
    ],
)
def test_what_a_template_trips_over_is_a_refusal(source: str) -> None:
    """A template's own refusal, an undefined value and a sandbox violation are refusals, not crashes."""
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render([USER])


def test_no_template_says_so(tmp_path: Path) -> None:
    """A directory without a template can encode prompts and refuses chats."""
    runtime = ChatRuntime(write_model_directory(tmp_path, None))
    assert runtime.encode_prompt("hello")
    with pytest.raises(TemplateMissing, match="no chat template"):
        runtime.render_chat([USER])


@pytest.mark.parametrize("printing", ["{{ a | tojson }}", "{{ a }}", "{{ 'x' + a }}", "{{ c.function | tojson }}"])
def test_arguments_are_printed_as_they_were_written(printing: str) -> None:
    """However a template prints arguments, their bytes are the model's (B044)."""
    written = '{"path":"a","n":1.50,  "edits":[{"new":"x","old":"é"}]}'
    source = "{% set c = messages[0].tool_calls[0] %}{% set a = c.function.arguments %}" + printing
    call = {"function": {"name": "f", "arguments": written}}
    assert written in ChatTemplate(source, {}).render([{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize("source", [CHATML, STRIPS_THINKING], ids=["chatml", "strips thinking"])
def test_the_turn_boundary_is_a_prefix_of_the_next_turn(tmp_path: Path, source: str) -> None:
    """Up to the turn boundary the next turn begins with the same tokens, whatever the template drops (B043)."""
    runtime = ChatRuntime(write_model_directory(tmp_path, source))
    system = {"role": "system", "content": "the lazy dog " * 5}
    first = runtime.render_chat([system, USER])
    second = runtime.render_chat([system, USER, ANSWER, {"role": "user", "content": "alpha"}])
    other = runtime.render_chat([system, {"role": "user", "content": "Quick"}])
    assert first.boundaries.turn > first.boundaries.system > 0
    assert second.tokens.startswith(first.tokens[: 4 * first.boundaries.turn])
    assert other.tokens.startswith(first.tokens[: 4 * first.boundaries.system])
    assert first.boundaries.turn < second.boundaries.history < second.prompt_tokens


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.text(max_size=10))
def test_finding_boundaries_never_changes_the_tokens(runtime: ChatRuntime, contents: list[str], system: str) -> None:
    """The piecewise encoding equals encoding the whole prompt, also where users type special tokens."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system + "<|im_end|>"}]
    messages += [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)]
    template = ChatTemplate(CHATML, runtime.tokenizer.special_names)
    live = template.render(messages)
    ids, boundaries = BoundaryFinder(runtime.tokenizer, template).encode(live, messages, None, {})
    assert ids == runtime.tokenizer.encode_rendered(live)
    assert all(0 < at < len(ids) for at in boundaries.positions(len(ids)))
