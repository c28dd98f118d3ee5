"""Where a prompt can be split so that a later prompt of the same conversation begins with the same tokens.

Found by comparing renders, never by knowing a template: the shared text of two renders is encoded up to the last added
token before the point where they part (text on both sides of an added token is encoded independently), and the few
tokens after it are compared one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlxcel.chat.templates import ChatTemplate, Message, TemplateRefused
from mlxcel.chat.tokenizer import Tokenizer

_PROBES = ("0", "Q")  # two user texts with different first characters: one of them differs from any real text


class Boundaries(msgspec.Struct, frozen=True):
    """Token positions, 0 where there is none.

    `system`: end of system prompt and tools. `history`: end of the conversation before the new messages.
    `turn`: end of all messages, before the header that asks for the answer; the next turn's history agrees up to here
    even where a template drops thinking or adds an empty thinking block to the header. `marked`: the ends of what the
    client marked, in its order.
    """

    system: int = 0
    history: int = 0
    turn: int = 0
    marked: tuple[int, ...] = ()

    def positions(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the distinct positions strictly inside the prompt, ascending."""
        return tuple(
            sorted({at for at in (self.system, self.history, self.turn, *self.marked) if 0 < at < prompt_tokens})
        )

    def shared(self) -> tuple[int, ...]:
        """Return the positions that end what many sessions have in common: system prompt, tools and the client's marks."""
        return tuple(sorted({at for at in (self.system, *self.marked) if at > 0}))


def new_message_start(messages: Sequence[Message]) -> int:
    """Return the index of the first message after the last assistant message; leading system messages are history."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "assistant":
            return index + 1
    return leading_system(messages)


def leading_system(messages: Sequence[Message]) -> int:
    """Return how many messages at the start are system (or developer) messages."""
    count = 0
    for message in messages:
        if message.get("role") not in ("system", "developer"):
            break
        count += 1
    return count


def _probed(mark: Sequence[Message], probe: str) -> list[Message]:
    """Continue the last message of a mark with a probe: renders of two probes agree up to the mark and no further."""
    *before, last = mark
    if last.get("tool_calls"):
        return [*mark, {"role": "tool", "tool_call_id": "0", "content": probe}]
    return [*before, {**last, "content": f"{last.get('content') or ''}{probe}"}]


def _common_text(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare at memory speed; character by character takes milliseconds on long prompts
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class BoundaryFinder:
    """Encodes one live prompt once and finds its boundaries with a few small extra encodings."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def encode(
        self,
        live: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        marks: Sequence[Sequence[Message]] = (),
    ) -> tuple[list[int], Boundaries]:
        """Return the ids of the live prompt and its boundaries (0 where a render is refused).

        `marks`: beginnings of the conversation, the last message of each cut where the client marked it.
        """
        renders = self._renders(messages, tools, kwargs)
        for mark in marks:
            renders += [self._render_or_nothing(_probed(mark, probe), tools, kwargs) for probe in _PROBES]
        ids, found = self._encode_with(live, renders)
        first_turn = new_message_start(messages) == leading_system(messages)  # then the system prefix is the history
        return ids, Boundaries(
            system=min(found[0], found[1]),
            history=0 if first_turn else found[2],
            turn=found[3],
            marked=tuple(min(found[at : at + 2]) for at in range(4, len(found), 2)),
        )

    def _renders(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, kwargs: Mapping[str, Any]
    ) -> list[str]:
        system = list(messages[: leading_system(messages)])
        history = list(messages[: new_message_start(messages)])
        probes = [[*system, {"role": "user", "content": probe}] for probe in _PROBES]
        return [self._render_or_nothing(part, tools, kwargs) for part in (*probes, history, list(messages))]

    def _render_or_nothing(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, kwargs: Mapping[str, Any]
    ) -> str:
        if not messages:
            return ""
        try:
            return self._template.render(messages, tools, add_generation_prompt=False, kwargs=kwargs)
        except TemplateRefused:
            # A template may insist on a user message: then this boundary does not exist. The live render succeeded.
            return ""

    def _encode_with(self, live: str, renders: Sequence[str]) -> tuple[list[int], list[int]]:
        shared = [_common_text(live, render) for render in renders]
        cuts = [self._cut(live, at) for at in shared]
        ids: list[int] = []
        tokens_at: dict[int, int] = {0: 0}
        start = 0
        for cut in [*sorted(set(cuts) - {0}), len(live)]:
            ids += self._tokenizer.encode_rendered(live[start:cut]) if cut > start else []
            tokens_at[cut] = len(ids)
            start = cut
        found = []
        for render, cut in zip(renders, cuts, strict=True):
            tail = self._tokenizer.encode_rendered(render[cut:]) if len(render) > cut else []
            base = tokens_at[cut]
            found.append(base + _common_tokens(tail, ids[base:]) if render else 0)
        return ids, found

    def _cut(self, live: str, shared: int) -> int:
        """Return the end of the last added token within the first `shared` characters, 0 if there is none."""
        if not self._tokenizer.splits_at_added_tokens():
            return 0
        last = 0
        for text in self._tokenizer.split_texts:
            at = live.rfind(text, 0, shared)
            if at >= 0:
                last = max(last, at + len(text))
        return last
