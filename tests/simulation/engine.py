"""A pretend model whose KV rows are chained hashes of all tokens before them: a row in the wrong place can't go unseen."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from mlxcel.core.tokens import TOKEN_BYTES, from_ids
from mlxcel.ports import ModelFacts, Part, Parts, RowFailed, SamplingParams, StepToken

ROW_BYTES = 8
WINDOW = 24  # tokens
VOCAB = 50


class WrongKv(BaseException):
    """A request was about to decode on KV that is not its own: the one thing that must never happen."""


def rows_after(last: bytes, tokens: bytes) -> bytes:
    """Return one KV row a token: each hashes the row before it and its token."""
    rows = []
    for at in range(0, len(tokens), TOKEN_BYTES):
        last = blake2b(last + tokens[at : at + TOKEN_BYTES], digest_size=ROW_BYTES).digest()
        rows.append(last)
    return b"".join(rows)


def next_token(row: bytes) -> int:
    """Return the greedy token after this row."""
    return row[-1] % VOCAB


def answer_of(prompt: list[int], max_tokens: int) -> list[int]:
    """Return what the pretend model says to a prompt."""
    row = rows_after(b"", from_ids(prompt))[-ROW_BYTES:]
    said = []
    for _ in range(max_tokens):
        said.append(next_token(row))
        row = rows_after(row, from_ids(said[-1:]))
    return said


class PretendCache:
    """A live cache: its rows (a `state` model keeps the last only) and how many tokens it covers."""

    def __init__(self, rows: bytes = b"", length: int = 0) -> None:
        self.rows, self.length = rows, length

    def feed(self, tokens: bytes, growing: bool) -> None:
        """Compute the rows of more tokens."""
        fresh = rows_after(self.rows[-ROW_BYTES:], tokens)
        self.rows = self.rows + fresh if growing else (fresh or self.rows)[-ROW_BYTES:]
        self.length += len(tokens) // TOKEN_BYTES


class PretendEngine:
    """Implements ports.Engine for a model kind: "prefix" (rows only), "hybrid" (rows and a state), "state", "window"
    (rows, and a state that is the last WINDOW rows).

    `fail_next`: the next decode step loses all its rows.
    """

    def __init__(self, kind: str) -> None:
        self.growing, self.kept_rows = kind != "state", WINDOW if kind == "window" else 1
        self.facts = ModelFacts(
            name="pretend", path="", model_type="pretend", fingerprint=kind, fingerprint_parts={"weights": kind},
            context_tokens=4096, vocab_size=VOCAB, eos_token_ids=(), kv_bytes_per_token=ROW_BYTES if self.growing else 0,
            kv_mode="fp", reuse="prefix" if kind == "prefix" else "snapshot", reuse_refusal="", lane="batched",
            lane_reason="", layers=("Pretend",), dtype="uint8", weights_bytes=0,
        )  # fmt: skip
        self._rows: dict[int, dict[str, Any]] = {}
        self._next_row = 1
        self.fail_next = False

    def new_cache(self) -> PretendCache:
        return PretendCache()

    def cache_tokens(self, cache: PretendCache) -> int:
        return cache.length

    def prefill(self, cache: PretendCache, tokens: bytes) -> None:
        cache.feed(tokens, self.growing)

    def copy_rows(self, cache: PretendCache, start: int, stop: int) -> tuple[str, bytes]:
        assert stop <= cache.length, "only rows that are there can be copied"
        return ("rows", cache.rows[start * ROW_BYTES : stop * ROW_BYTES])

    def copy_state(self, cache: PretendCache, aligned: int) -> tuple[str, bytes]:
        tail = cache.rows[aligned * ROW_BYTES :] if self.growing else b""
        held = cache.rows[-self.kept_rows * ROW_BYTES :]
        return ("state", cache.length.to_bytes(8, "little") + len(held).to_bytes(8, "little") + held + tail)

    def state_cuttable(self, cache: PretendCache) -> bool:
        return self.kept_rows > 1 and cache.length <= WINDOW

    def cut_state(self, checkpoint: tuple[str, bytes], length: int) -> tuple[str, bytes]:
        had, size = (int.from_bytes(checkpoint[1][at : at + 8], "little") for at in (0, 8))
        assert length < had, "a cut leaves something out"
        assert size == had * ROW_BYTES, "only a window that has not wrapped can be cut"
        held = checkpoint[1][16 : 16 + length * ROW_BYTES]
        return ("state", length.to_bytes(8, "little") + len(held).to_bytes(8, "little") + held)

    def piece_bytes(self, piece: tuple[str, bytes]) -> int:
        return len(piece[1])

    def piece_parts(self, piece: tuple[str, bytes]) -> list[Part]:
        return [Part(piece[0], "uint8", (len(piece[1]),), piece[1])]

    def piece_from_parts(self, parts: Parts) -> tuple[str, bytes]:
        return (parts[0].name, bytes(parts[0].data))

    def assemble(
        self, pieces: Sequence[tuple[Any, int, int]], checkpoint: Any | None, reserve_tokens: int
    ) -> PretendCache:
        rows = b"".join(piece[1][first * ROW_BYTES : last * ROW_BYTES] for piece, first, last in pieces)
        if checkpoint is None:
            return PretendCache(rows, len(rows) // ROW_BYTES)
        length, size = (int.from_bytes(checkpoint[1][at : at + 8], "little") for at in (0, 8))
        held, tail = checkpoint[1][16 : 16 + size], checkpoint[1][16 + size :]
        rows = rows + tail if self.growing else held
        if self.growing and (len(rows) != length * ROW_BYTES or rows[-size:] != held):
            raise WrongKv("rows and state are of different positions")
        return PretendCache(rows, length)

    def start_row(self, cache: PretendCache, last: int, context: bytes, params: SamplingParams, max_tokens: int) -> int:
        cache.feed(context[cache.length * TOKEN_BYTES :], self.growing)  # the end of the prompt, in one pass
        expected = rows_after(b"", context)
        expected = expected if self.growing else expected[-ROW_BYTES:]
        if cache.rows != expected:
            raise WrongKv(f"{cache.length} tokens of KV are not those of the prompt")
        row = self._next_row
        self._next_row += 1
        self._rows[row] = {"cache": cache, "pending": last, "said": b"", "left": max_tokens}
        return row

    def decode_step(self) -> list[StepToken | RowFailed]:
        if self.fail_next:
            self.fail_next = False
            lost = [RowFailed(row, "pretend fault") for row in self._rows]
            self._rows.clear()
            return list(lost)
        return [self._one(row, held) for row, held in list(self._rows.items()) if held["left"]]

    def _one(self, row: int, held: dict[str, Any]) -> StepToken:
        fed = from_ids([held["pending"]])
        held["cache"].feed(fed, self.growing)
        held["said"] += fed
        held["pending"], held["left"] = next_token(held["cache"].rows[-ROW_BYTES:]), held["left"] - 1
        return StepToken(row, held["pending"], None if held["left"] else "length")

    def finish_row(self, row: int) -> tuple[PretendCache, bytes]:
        held = self._rows.pop(row)
        return held["cache"], held["said"]

    def drop_row(self, row: int) -> None:
        del self._rows[row]

    def rows(self) -> int:
        return len(self._rows)

    def live_bytes(self) -> int:
        return sum(len(held["cache"].rows) for held in self._rows.values())

    def memory(self) -> dict[str, int]:
        return {"recommended_bytes": 1 << 40}
