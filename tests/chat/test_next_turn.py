"""The foreseen beginning of the next turn is how the next prompt begins, whatever its user says."""

from pathlib import Path

import pytest

from mlxcel.chat.runtime import ChatRuntime
from mlxcel.core.tokens import common_tokens, count
from tests.chat.test_templates import STRIPS_THINKING
from tests.chat.tiny_tokenizer import CHATML, write_model_directory

USER = {"role": "user", "content": "the quick brown fox"}
TEXTS = ("hello", "ok", "Tell me", "\n\nworld", " weather city", "<|im_start|>", "가", "")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


@pytest.mark.parametrize("template", [CHATML, STRIPS_THINKING], ids=["chatml", "strips thinking"])
@pytest.mark.parametrize("said", ["hello world", "<think>\nlazy dog\n</think>\n\nhello world", " the\n"])
def test_the_next_prompt_begins_as_foreseen(tmp_path: Path, template: str, said: str) -> None:
    """All of the past, the answer without its thinking, is foreseen: up to the new message's header at least."""
    runtime = ChatRuntime(write_model_directory(tmp_path, template))
    chat = runtime.render_chat([USER])
    assert chat.next_turn is not None
    head = chat.next_turn(said)
    assert head is not None
    parser = runtime.output_parser(chat)
    content = "".join(p.text for p in [*parser.push(said), *parser.finish()] if type(p).__name__ == "Content")
    past = [USER, {"role": "assistant", "content": content}]
    history = runtime.render_chat([*past, {"role": "user", "content": "Q"}]).boundaries.history
    assert count(head) >= history > 0
    for text in TEXTS:
        later = runtime.render_chat([*past, {"role": "user", "content": text}])
        assert common_tokens(head, later.tokens) == count(head)


def test_a_tool_call_foresees_nothing(runtime: ChatRuntime) -> None:
    """What follows a call is a tool's answer, which no probe knows."""
    chat = runtime.render_chat([USER], TOOLS)
    assert chat.next_turn is not None
    assert chat.next_turn('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>') is None


def test_a_template_that_refuses_foresees_nothing(tmp_path: Path) -> None:
    """A template that takes one message only ends the foresight, not the answer."""
    template = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    runtime = ChatRuntime(write_model_directory(tmp_path, template))
    chat = runtime.render_chat([USER])
    assert chat.next_turn is not None
    assert chat.next_turn("hello") is None
