"""Render a model's chat template as transformers does (same Jinja settings, filters and globals), in a sandbox.

Reference for the settings: transformers 5, `utils/chat_template_utils.py`; messages lose keys whose value is null.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlxcel.chat.arguments import dump_json, raw_arguments

Message = Mapping[str, Any]


class TemplateRefused(Exception):
    """The template can't render these messages; the message is the template's own or names the fault."""


class TemplateMissing(Exception):
    """The model directory has no chat template."""


_TRIPS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError)


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training masks; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way of declaring tags

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def local_now() -> datetime:
    """The time that a template may print: transformers uses local time as well."""
    return datetime.now()


class ChatTemplate:
    """One compiled template. Rendering is deterministic but for `strftime_now`, which reads the given clock."""

    def __init__(self, source: str, special_names: Mapping[str, str], now: Callable[[], datetime] = local_now) -> None:
        """Raises TemplateRefused when the template has a syntax error."""
        self.source = source
        self._special = dict(special_names)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = dump_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as fault:
            raise TemplateRefused(f"the chat template does not compile: {fault}") from fault

    def mentions(self, word: str) -> bool:
        """Tell whether the template's text names a variable or a marker."""
        return word in self.source

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raises TemplateRefused with the template's own words."""
        names = {**self._special, **(kwargs or {})}
        try:
            return self._template.render(
                **{
                    **names,
                    "messages": [_plain_message(message) for message in messages],
                    "tools": list(tools) if tools else None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _TRIPS as fault:
            # A template is a program of the model's author: whatever it trips over is about these messages.
            raise TemplateRefused(str(fault) or type(fault).__name__) from fault


def _plain_message(message: Message) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        function["arguments"] = raw_arguments(function["arguments"])
    return {**call, "function": function}


def read_template(directory: Path, with_tools: bool = False) -> str:
    """Return the template's source from a model directory (chat_template.jinja, .json, tokenizer_config.json).

    Where a model names several, "tool_use" serves requests with tools. Raises TemplateMissing.
    """
    jinja = directory / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        if not path.is_file():
            continue
        found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            named = {entry["name"]: entry["template"] for entry in found}
            for wanted in ("tool_use", "default") if with_tools else ("default", "tool_use"):
                if wanted in named:
                    return str(named[wanted])
    raise TemplateMissing(f"{directory} has no chat template (chat_template.jinja); use /v1/completions or add one")
