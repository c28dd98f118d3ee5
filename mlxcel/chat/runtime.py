"""One model's chat side: tokenizer, template, formats; turns a request's messages into a prompt, once per request."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mlxcel.chat.assemble import TextAssembler
from mlxcel.chat.boundaries import Boundaries, BoundaryFinder
from mlxcel.chat.next_turn import NextTurn
from mlxcel.chat.output import OutputParser
from mlxcel.chat.reasoning import reasoning_marks, starts_inside
from mlxcel.chat.signature import template_signature
from mlxcel.chat.templates import ChatTemplate, Message, TemplateMissing, read_template
from mlxcel.chat.tokenizer import Tokenizer, pack_tokens
from mlxcel.chat.tool_formats import ToolFormat, marker_texts, tool_format


class PreparedChat(msgspec.Struct, frozen=True):
    """One rendered chat. Key, prefill and log all come from these tokens. `tokens`: int32 little-endian."""

    text: str
    tokens: bytes
    template_sig: str
    boundaries: Boundaries
    inside_reasoning: bool
    tool_format: ToolFormat
    next_turn: NextTurn | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        return len(self.tokens) // 4


class ChatRuntime:
    """Built once when the model is ready. Thread-safe; rendering and encoding belong off the event loop."""

    def __init__(
        self,
        directory: Path,
        template_override: str | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises TokenizerMissing, or TemplateRefused for a template that does not compile."""
        self.tokenizer = Tokenizer(directory)
        self._default_kwargs = dict(default_kwargs or {})
        self._plain = self._load(directory, template_override, with_tools=False)
        self._with_tools = self._load(directory, template_override, with_tools=True)

    def _load(self, directory: Path, override: str | None, with_tools: bool) -> ChatTemplate | None:
        try:
            source = override or read_template(directory, with_tools)
        except TemplateMissing as fault:
            self.no_template = str(fault)
            return None
        return ChatTemplate(source, self.tokenizer.special_names)

    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        template = self._with_tools if tools else self._plain
        if template is None:
            raise TemplateMissing(self.no_template)
        return template

    def merged_kwargs(self, template: ChatTemplate, request_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the kwargs of a render: the request's over the server's.

        `preserve_thinking` is on where a template knows it: otherwise past turns render differently each time.
        """
        defaults = {"preserve_thinking": True} if template.mentions("preserve_thinking") else {}
        return {**defaults, **self._default_kwargs, **(request_kwargs or {})}

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        marks: Sequence[Sequence[Message]] = (),
    ) -> PreparedChat:
        """Render, encode and find boundaries. With tool_choice "none" tools are not offered.

        `marks`: beginnings of the conversation whose ends become boundaries too.

        Raises TemplateMissing, TemplateRefused.
        """
        offered = list(tools or ()) if tool_choice != "none" else []
        template = self._template(offered)
        merged = self.merged_kwargs(template, kwargs)
        known = [_known_role(message, template) for message in messages]
        live = template.render(known, offered, add_generation_prompt=True, kwargs=merged)
        ids, boundaries = BoundaryFinder(self.tokenizer, template).encode(live, known, offered, merged, marks)
        prepared = PreparedChat(
            text=live,
            tokens=pack_tokens(ids),
            template_sig=template_signature(template.source, merged, tool_choice, offered),
            boundaries=boundaries,
            inside_reasoning=starts_inside(live, reasoning_marks(template.source)),
            tool_format=tool_format(template.source) if offered else "none",
        )
        parser = partial(self.output_parser, prepared)
        following = NextTurn(self.tokenizer, template, known, offered, merged, parser)
        return msgspec.structs.replace(prepared, next_turn=following)

    def knows_kwarg(self, name: str) -> bool:
        """Tell whether the template reads a variable of that name."""
        return self._plain is not None and self._plain.mentions(name)

    def encode_prompt(self, text: str) -> bytes:
        """Return the tokens of a plain prompt (one BOS where the model wants one, never two)."""
        return pack_tokens(self.tokenizer.encode_prompt(text))

    def assembler(self, stops: Sequence[str], chat: PreparedChat | None = None) -> TextAssembler:
        """Return the text assembler of one request; markers that the output parser needs stay visible."""
        if chat is None:
            return TextAssembler(self.tokenizer, stops)
        source = self._plain.source if self._plain is not None else ""
        marks = reasoning_marks(source)
        visible = {*marker_texts(chat.tool_format), *((marks.open, marks.close) if marks else ())}
        keep = {number for number, (text, _) in self.tokenizer.added.items() if text in visible}
        return TextAssembler(self.tokenizer, stops, keep=keep, trim_first_space=True)

    def output_parser(self, chat: PreparedChat, parallel_calls: bool = True) -> OutputParser:
        """Return the parser of one answer."""
        source = self._plain.source if self._plain is not None else ""
        return OutputParser(reasoning_marks(source), chat.inside_reasoning, chat.tool_format, parallel_calls)


def _known_role(message: Message, template: ChatTemplate) -> Message:
    """Templates that don't know OpenAI's newer role "developer" get it as "system"."""
    if message.get("role") == "developer" and not template.mentions("developer"):
        return {**message, "role": "system"}
    return message
