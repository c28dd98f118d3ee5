"""The engine: the only room that knows MLX. Caches and pieces are opaque handles to all others."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from mlxcel.ports.kv import Part, Parts

Lane = Literal["batched", "sequential"]


class ModelFacts(msgspec.Struct, frozen=True):
    """What the rest of the program may know about the loaded model."""

    name: str  # display id: last path component
    path: str
    model_type: str
    fingerprint: str  # 64 hex: weights, config, tokenizer, KV layout, cache classes
    fingerprint_parts: dict[str, str]  # part name -> digest, so that a change can be named
    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    kv_bytes_per_token: int  # growing (cut-by-token) layers only; 0 if there are none
    kv_mode: str  # "fp", "q8g64", ...
    reuse: Literal[
        "prefix", "snapshot", "none"
    ]  # prefix: any block; snapshot: only captured positions; none: served cold
    reuse_refusal: str  # when `none`: the cache class that can't be kept, by name
    lane: Lane
    lane_reason: str
    layers: tuple[str, ...]  # cache class of each layer
    dtype: str
    weights_bytes: int
    rope_regime_boundary: int | None = None  # tokens; Phi-3/4 LongRoPE only
    lora_id: str = ""  # digest of the adapter and its effective scale; "" for none


class SamplingParams(msgspec.Struct, frozen=True):
    """How the next token is chosen. temperature 0 is greedy (arg max)."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    repetition_context: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1  # -1 none, 0 the chosen token's, n also the n likeliest
    forced_tokens: tuple[int, ...] = ()  # tests only: emit exactly these through the real engine


class StepToken(msgspec.Struct, frozen=True):
    """One decoded token of one row. `finish` is "stop" (an eos id), "length" or None."""

    row: int
    token: int
    finish: str | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class RowFailed(msgspec.Struct, frozen=True):
    """A row was lost to an exception in the lane; it is out already."""

    row: int
    error: str


class Engine(Protocol):
    """The only importer of MLX. Every call is made from the engine thread. Caches and pieces are opaque handles."""

    facts: ModelFacts

    def new_cache(self) -> Any: ...

    def cache_tokens(self, cache: Any) -> int:
        """Return how many tokens the cache covers (asserts that layers agree)."""
        ...

    def prefill(self, cache: Any, tokens: bytes) -> None:
        """Run one chunk through the model and evaluate the cache. No logits are kept."""
        ...

    def copy_rows(self, cache: Any, start: int, stop: int) -> Any:
        """Return a detached piece: rows [start, stop) of every growing layer, contiguous, evaluated; no view is kept."""
        ...

    def copy_state(self, cache: Any, aligned: int) -> Any:
        """Return a detached checkpoint at the cache's present length: rows [aligned, length) of growing layers plus the
        whole state of the others (recurrent state; window rows in temporal order with their offset)."""
        ...

    def state_cuttable(self, cache: Any) -> bool:
        """Return whether a checkpoint of this cache would hold the state of every earlier position too: windows that have
        not wrapped, nothing recurrent. Asked of the cache objects."""
        ...

    def cut_state(self, checkpoint: Any, length: int) -> Any:
        """Return a cuttable checkpoint as it would have been at `length` tokens. The given one stays as it is."""
        ...

    def piece_bytes(self, piece: Any) -> int: ...

    def piece_parts(self, piece: Any) -> list[Part]:
        """View an evaluated detached piece as bytes, without a copy; safe to read from other threads."""
        ...

    def piece_from_parts(self, parts: Parts) -> Any:
        """Raises ValueError when shape, dtype or layer count do not fit the loaded model."""
        ...

    def assemble(self, pieces: Sequence[tuple[Any, int, int]], checkpoint: Any | None, reserve_tokens: int) -> Any:
        """Build a live cache from (piece, first, last) runs in order, half-open rows inside each piece, plus a checkpoint.

        Copies: the stored pieces are never written to. `reserve_tokens`: total room to allocate at once.
        """
        ...

    def start_row(self, cache: Any, last_token: int, context: bytes, params: SamplingParams, max_tokens: int) -> int:
        """Hand a prefilled cache to the decode lane, which takes it over; returns a row number.

        `context`: all of the prompt but `last_token`. What the cache does not cover of it yet is computed in the same pass
        as the last token, with logits for each: meant for a few tokens.
        """
        ...

    def decode_step(self) -> list[StepToken | RowFailed]:
        """One decode step of every row (both lanes)."""
        ...

    def finish_row(self, row: int) -> tuple[Any, bytes]:
        """Take a finished or abandoned row out; returns its own cache (evaluated) and the tokens it covers after the
        ones it started with (cache length == start + len(tokens) / 4, asserted)."""
        ...

    def drop_row(self, row: int) -> None:
        """Take a row out and throw its cache away."""
        ...

    def rows(self) -> int: ...

    def live_bytes(self) -> int:
        """Bytes of the live caches of all rows (rows x longest length: a batch is rectangular)."""
        ...

    def memory(self) -> dict[str, int]: ...

    def lora(self) -> list[dict[str, Any]]:
        """Return id, path and scale of the LoRA adapters."""
        ...

    def set_lora_scale(self, scale: float) -> None:
        """Change the adapter's scale and `facts.lora_id` with it. No row may be running."""
        ...
