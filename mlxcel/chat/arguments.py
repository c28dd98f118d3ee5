"""Tool-call arguments that reach the prompt exactly as the model wrote them.

OpenAI clients send arguments as a JSON string; some templates print that string, others apply `tojson` to an object.
A plain object would be serialised anew (other spacing, other key order), and the next turn would no longer begin with
what the model produced. `RawArguments` is a mapping for templates that look inside, and the original text for all that
print it.
"""

import json
from typing import Any


class RawArguments(dict[str, Any]):
    """A JSON object that remembers its source text. Reading works as for a dict; printing gives the source."""

    def __init__(self, source: str, parsed: dict[str, Any]) -> None:
        super().__init__(parsed)
        self.source = source

    def __str__(self) -> str:
        return self.source

    __repr__ = __str__

    def __add__(self, other: object) -> str:
        return self.source + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + self.source


def raw_arguments(source: str) -> RawArguments | str:
    """Wrap the text of a JSON object; any other text stays the string that it is."""
    try:
        parsed = json.loads(source)
    except (ValueError, RecursionError):
        return source
    return RawArguments(source, parsed) if isinstance(parsed, dict) else source


def dump_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of chat templates: HTML is not escaped, non-ASCII is kept, raw arguments come out unchanged."""
    if isinstance(value, RawArguments):
        return value.source
    sources: list[str] = []
    marked = _with_marks(value, sources)
    text = json.dumps(marked, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    for index, source in enumerate(sources):
        text = text.replace(json.dumps(_mark(index), ensure_ascii=ensure_ascii), source, 1)
    return text


def _mark(index: int) -> str:
    # U+E000 is a private-use character; the mark only has to differ from other strings of one tool call.
    return f"\ue000raw-arguments-{index}\ue000"


def _with_marks(value: Any, sources: list[str]) -> Any:
    if isinstance(value, RawArguments):
        sources.append(value.source)
        return _mark(len(sources) - 1)
    if isinstance(value, dict):
        return {key: _with_marks(item, sources) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_marks(item, sources) for item in value]
    return value
