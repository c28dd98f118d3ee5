"""Split what a model thinks from what it answers while the text streams in."""

from typing import Literal

import msgspec

PartKind = Literal["reasoning", "content"]
_PAIRS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))


class ReasoningMarks(msgspec.Struct, frozen=True):
    """The texts around thinking."""

    open: str
    close: str


def reasoning_marks(template_source: str) -> ReasoningMarks | None:
    """Return the marks that a model uses, judged by its template's text; None for a model that doesn't think."""
    for opening, closing in _PAIRS:
        if closing in template_source:
            return ReasoningMarks(opening, closing)
    return None


def starts_inside(prompt: str, marks: ReasoningMarks | None) -> bool:
    """Tell whether the rendered prompt ends in an open thinking block, so that the answer begins inside it."""
    return marks is not None and prompt.rstrip().endswith(marks.open)


def held_suffix(text: str, mark: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class ReasoningSplitter:
    """A small state machine: before -> inside -> after. A block counts only at the start of an answer.

    White space next to the marks belongs to neither part.
    """

    def __init__(self, marks: ReasoningMarks | None, inside: bool = False) -> None:
        self._marks = marks
        self._state = "after" if marks is None else "inside" if inside else "before"
        self._held = ""
        self._skip_space = inside

    def push(self, text: str) -> list[tuple[PartKind, str]]:
        """Return (kind, text) parts that are certain, in order; no part is empty."""
        parts: list[tuple[PartKind, str]] = []
        self._held += text
        while self._marks is not None and self._step(parts, self._marks):
            pass
        if self._state == "after":
            self._take(parts, "content", self._held)
            self._held = ""
        return parts

    def finish(self) -> list[tuple[PartKind, str]]:
        """Return what was held back as the part it stands in."""
        parts: list[tuple[PartKind, str]] = []
        self._take(parts, "reasoning" if self._state == "inside" else "content", self._held)
        self._held = ""
        return parts

    def _step(self, parts: list[tuple[PartKind, str]], marks: ReasoningMarks) -> bool:
        """Advance one state; True when another step may follow."""
        if self._state == "before":
            start = self._held.lstrip()
            if start.startswith(marks.open):
                self._state, self._skip_space, self._held = "inside", True, start[len(marks.open) :]
                return True
            if not marks.open.startswith(start):
                self._state = "after"
            return False
        if self._state == "inside":
            return self._step_inside(parts, marks)
        return False

    def _step_inside(self, parts: list[tuple[PartKind, str]], marks: ReasoningMarks) -> bool:
        at = self._held.find(marks.close)
        if at >= 0:
            self._take(parts, "reasoning", self._held[:at].rstrip())
            self._held = self._held[at + len(marks.close) :]
            self._state, self._skip_space = "after", True
            return False
        keep = held_suffix(self._held, marks.close)
        certain = self._held[: len(self._held) - keep].rstrip()
        self._take(parts, "reasoning", certain)
        self._held = self._held[len(certain) :] if not self._skip_space else self._held.lstrip()
        return False

    def _take(self, parts: list[tuple[PartKind, str]], kind: PartKind, text: str) -> None:
        if self._skip_space:
            text = text.lstrip()
        if text:
            self._skip_space = False
            parts.append((kind, text))
