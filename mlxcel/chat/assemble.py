"""From tokens to text, one token at a time: only text that is certain leaves, and never a piece of a stop string.

Runs on the engine thread, so it is plain Python with small steps (about two microseconds a token without stop strings).
"""

import codecs
from collections.abc import Callable, Collection, Sequence

from mlxcel.chat.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class _ByteDecoder:
    """Decodes tokens whose bytes are known; an unfinished character waits for its other bytes."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._bytes_of(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Decodes with the tokenizer itself: the text of a token is what it adds to the tokens just before it."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._settled = 0  # ids before this gave their text

    def push(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[: self._settled])
        after = self._decode(self._ids)
        if after.endswith(_REPLACEMENT) or not after.startswith(before):
            return ""
        self._ids = self._ids[max(0, self._settled - 4) :] if self._settled > 32 else self._ids
        self._settled = len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        before = self._decode(self._ids[: self._settled])
        after = self._decode(self._ids)
        self._settled = len(self._ids)
        return after[len(before) :] if after.startswith(before) else ""


class StopFinder:
    """Finds the stop string that completes first; holds back text that may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string: it would stop before the first character."""
        if any(not stop for stop in stops):
            raise ValueError("a stop string may not be empty")
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self.found = ""

    def push(self, text: str) -> str:
        """Return the text that is certain; sets `found` when a stop string completed, which is left out."""
        if not self._stops:
            return text
        held = self._held + text
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if hits:
            # Earliest end first: the answer must not depend on how the text was cut into tokens.
            _, start, self.found = min(hits)
            self._held = ""
            return held[:start]
        keep = self._possible_start(held)
        self._held = held[keep:]
        return held[:keep]

    def _possible_start(self, held: str) -> int:
        for start in range(max(0, len(held) - self._longest + 1), len(held)):
            tail = held[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(held)

    def finish(self) -> str:
        """Return what was held back: it turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


class TextAssembler:
    """Text of one generation. Special tokens are silent, but for those in `keep`; so are the end-of-text tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        keep: Collection[int] = (),
        trim_first_space: bool = False,
    ) -> None:
        """`trim_first_space`: drop the space that a SentencePiece answer begins with (chat yes, completions no).

        Raises ValueError for an empty stop string.
        """
        self._silent = (tokenizer.special_ids | tokenizer.eos_ids) - frozenset(keep)
        self._decoder: _ByteDecoder | _WindowDecoder
        if tokenizer.kind == "other":
            self._decoder = _WindowDecoder(tokenizer.decode)
        else:
            self._decoder = _ByteDecoder(tokenizer.bytes_of)
        self._trim = trim_first_space and tokenizer.kind == "sentencepiece"
        self._finder = StopFinder(stops)

    @property
    def stop_string(self) -> str:
        """The stop string that completed, or ""."""
        return self._finder.found

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that became certain and whether a stop string completed. After that nothing comes."""
        if self._finder.found:
            return "", True
        if token in self._silent:
            return "", False
        text = self._trimmed(self._decoder.push(token))
        if not text:
            return "", False
        return self._finder.push(text), bool(self._finder.found)

    def finish(self) -> str:
        """Return what was held back: a possible stop string, an unfinished character as U+FFFD."""
        if self._finder.found:
            return ""
        text = self._finder.push(self._trimmed(self._decoder.finish()))
        return text if self._finder.found else text + self._finder.finish()

    def _trimmed(self, text: str) -> str:
        if self._trim and text:
            self._trim = False
            return text.removeprefix(" ")
        return text
