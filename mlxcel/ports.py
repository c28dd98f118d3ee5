"""The joints between rooms: protocols and the plain values that cross them.

Pure: no clock, I/O, randomness, logging, threads. MLX arrays never cross; other rooms see `Part` bytes.
Token sequences cross as `bytes`: each token id as int32 little-endian, 4 bytes a token (`mlxcel.core.tokens`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

# --------------------------------------------------------------------------- KV as bytes


class Part(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a stored piece, as raw C-contiguous bytes.

    `dtype` is mlx's name ("float32", "bfloat16", "uint32", ...); `shape` its dimensions; `data` a buffer of exactly
    `prod(shape) * itemsize` bytes (bytes, bytearray or a read-only memoryview of format "B").
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


Parts = Sequence[Part]


class PieceMissing(Exception):
    """The tier holds nothing under that key."""


class PieceCorrupt(Exception):
    """The tier holds bytes under that key that fail their checksum, length or header. The reason is the message."""


class TierUnavailable(Exception):
    """The tier can't be read or written now (full, read-only, I/O error). The message names file and cause."""


class DiskTier(Protocol):
    """A dumb map from a 32-byte key to the parts of one piece. No opinion about eviction. Thread-safe."""

    def inventory(self) -> dict[bytes, int]:
        """Return key -> stored bytes of every committed piece; reads the index, not the data."""
        ...

    def write_group(self, puts: Sequence[tuple[bytes, Parts]], deletes: Sequence[bytes]) -> dict[bytes, int]:
        """Commit puts and deletes in one transaction; returns key -> stored bytes. Raises TierUnavailable."""
        ...

    def read(self, key: bytes) -> list[Part]:
        """Return the verified, decompressed parts. Raises PieceMissing, PieceCorrupt, TierUnavailable."""
        ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class SpillOutcome(msgspec.Struct, frozen=True):
    """What became of one queued piece: `stored_bytes` when committed, else `error` (a sentence)."""

    key: bytes
    stored_bytes: int = 0
    error: str = ""


class SpillWriter(Protocol):
    """Write-behind: one thread that owns writes to the disk tier; a bounded queue."""

    def submit(self, seq: int, key: bytes, parts: Parts, nbytes: int) -> bool:
        """Queue a piece; False when the queue is full (nothing is queued). Commits only once the log is durable past `seq`."""
        ...

    def delete(self, seq: int, keys: Iterable[bytes]) -> None: ...

    def queued_bytes(self) -> int: ...

    def set_paced(self, paced: bool) -> None:
        """True while something decodes: write slowly. False: flat out."""
        ...

    def flush(self, timeout_s: float) -> bool: ...

    def close(self, timeout_s: float) -> bool: ...


class Restorer(Protocol):
    """Reads, verifies and decompresses pieces on its own threads."""

    def start(self, keys: Sequence[bytes], done: Callable[[list[list[Part]] | Exception], None]) -> Callable[[], None]:
        """Read all keys; call `done` once, from a thread, with parts per key or the first fault. Returns a cancel function."""
        ...

    def close(self) -> None: ...


# --------------------------------------------------------------------------- event log


class LogUnavailable(Exception):
    """The log can't be written any more in this process; the reason is the message."""


class EventLog(Protocol):
    """Append-only, group-committed. `append` returns at once with the record's sequence number."""

    def append(self, payload: bytes) -> int: ...

    def durable_seq(self) -> int: ...

    def wait_durable(self, seq: int, timeout_s: float) -> bool: ...

    def next_seq(self) -> int: ...

    def wants_checkpoint(self) -> bool:
        """True when the open segment is over its size or age and a checkpoint should open the next one."""
        ...

    def open_segment(self, checkpoint: bytes) -> int:
        """Seal the open segment and begin a new one whose first record is `checkpoint`; returns its sequence number."""
        ...

    def close(self) -> None: ...


# --------------------------------------------------------------------------- engine

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
    """A row was lost to an exception in the lane; `restartable` rows may be prefilled again."""

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

    def piece_bytes(self, piece: Any) -> int: ...

    def piece_parts(self, piece: Any) -> list[Part]:
        """View an evaluated detached piece as bytes, without a copy; safe to read from other threads."""
        ...

    def piece_from_parts(self, parts: Parts) -> Any:
        """Raises ValueError when shape, dtype or layer count do not fit the loaded model."""
        ...

    def assemble(self, pieces: Sequence[tuple[Any, int, int]], checkpoint: Any | None, reserve_tokens: int) -> Any:
        """Build a live cache from (piece, first row, last row) runs in order plus an optional checkpoint.
        Copies: the stored pieces are never written to. `reserve_tokens`: room to allocate at once."""
        ...

    def start_row(self, cache: Any, last_token: int, context: bytes, params: SamplingParams, max_tokens: int) -> int:
        """Hand a prefilled cache (all tokens but the last) to the decode lane; returns a row number."""
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


# --------------------------------------------------------------------------- generation, as HTTP sees it


class CacheScope(msgspec.Struct, frozen=True):
    """Which entries a request may share. The dimensions of the guide's key besides model and tokens."""

    template_sig: str = "raw"
    session_key: str = "__mlxcel_anon__"
    media_digest: bytes = b""  # 32 bytes; empty means the fixed text-only digest
    tenant_salt: str = ""
    lora_id: str = ""


class CacheOptions(msgspec.Struct, frozen=True):
    """Per-request choices. `read=False, store=False` is the guide's cache_prompt: false."""

    read: bool = True
    store: bool = True
    ttl_s: float | None = None


class TextAssembler(Protocol):
    """Turns tokens into text on the engine thread; finds stop strings. Pure Python, one per request."""

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that became certain and whether a stop string completed."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


class GenerateRequest(msgspec.Struct, frozen=True):
    """One generation. `boundaries`: positions (tokens) where prefill is split and a reusable point is kept."""

    request_id: str
    tokens: bytes
    params: SamplingParams
    max_tokens: int
    scope: CacheScope
    options: CacheOptions = CacheOptions()
    boundaries: tuple[int, ...] = ()
    text: Any = None  # TextAssembler | None
    arrived_s: float = 0.0


class Delta(msgspec.Struct, frozen=True):
    """Text and tokens that became certain."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...] = ()


class Progress(msgspec.Struct, frozen=True):
    prefilled_tokens: int
    total_tokens: int


class Finished(msgspec.Struct, frozen=True):
    """The end of a healthy generation. `cached_tokens`: prompt tokens really skipped, 0 <= cached < prompt."""

    finish_reason: str  # "stop" | "length"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    source: str  # "cold" | "memory" | "disk" | "snapshot"
    stop_string: str = ""
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    created_tokens: int = 0


class Failed(msgspec.Struct, frozen=True):
    """The end of an unhealthy generation: `kind` names a row of the error table."""

    kind: str  # "cancelled" | "engine_fault" | "overloaded" | "out_of_memory" | "shutting_down"
    message: str


StreamItem = Delta | Progress | Finished | Failed


class GenerationPort(Protocol):
    """What HTTP calls. Methods may be called from any thread; `emit` is called from the engine thread."""

    def submit(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> None:
        """Queue a generation. Raises Overloaded when the queue is full."""
        ...

    def cancel(self, request_id: str) -> None: ...

    def ask(self, question: str, **arguments: Any) -> Any:
        """Run an admin question or command on the engine thread and wait for its answer (plain dict).
        Questions: "stats", "state", "reset", "sweep", "checkpoint", "flush", "probe"."""
        ...

    def status(self) -> dict[str, Any]:
        """Return {"phase": "loading"|"ready"|"draining"|"dead", "detail": str, "facts": ModelFacts | None}; never blocks."""
        ...


class Overloaded(Exception):
    """The waiting queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RecordSource(Protocol):
    """A log opened for reading: the newest checkpoint and the records after it, or everything."""

    def records(self, since_seq: int = 0) -> Iterator[tuple[int, bytes]]: ...
