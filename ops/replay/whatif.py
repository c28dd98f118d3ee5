"""What other settings would have done, for a recorded history (through `decide`) or for arrivals (as blocks)."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import decode_state, encode_state
from mlxcel.core.policy import SECOND_US, Policy
from mlxcel.core.tokens import TOKEN_BYTES
from mlxcel.core.whatif.blocks import (
    BlockArrival,
    BlockTrace,
    PromptArrival,
    build_trace,
    chain_prompts,
    unbounded_hits,
)
from mlxcel.core.whatif.ranking import BOUND
from mlxcel.core.whatif.redrive import Redrive, Tally
from mlxcel.core.whatif.simulate import simulate
from ops.replay.container import is_container, read_header, read_rows
from ops.replay.mooncake import BLOCK_TOKENS, read_mooncake
from ops.replay.source import ARRIVALS, History
from ops.replay.walk import Moment, moments, open_history

EXAMPLE_KV_BYTES = 131_072
"""KV bytes per token where a trace can't say: 2 (K, V) x 32 layers x 8 heads x 128 x 2 bytes, a bf16 8B model with GQA."""


FIRST_RECORDS = 20_000  # looked at to learn how the server prefilled
MOST_REQUESTS = 1_000
USUAL_GRID = 512


class Settings(msgspec.Struct, frozen=True):
    """What to change; None leaves the recorded value. `policy`: "" for the server's own `decide`."""

    policy: str = ""
    capacity_bytes: int | None = None
    disk_capacity_bytes: int | None = None
    ttl_s: int | None = None
    max_entries: int | None = None
    min_prefix: int | None = None
    ranking: str | None = None  # the server's own: "leaf-lru" or "entry-lru"
    capacity_blocks: int | None = None  # instead of bytes, for simulated policies

    def apply(self, policy: Policy) -> Policy:
        """Return the settings with the changes."""
        changed: dict[str, Any] = {
            "capacity_bytes": self.capacity_bytes,
            "disk_capacity_bytes": self.disk_capacity_bytes,
            "ttl_us": None if self.ttl_s is None else self.ttl_s * SECOND_US,
            "max_entries": self.max_entries,
            "min_prefix_tokens": self.min_prefix,
            "ranking": self.ranking,
        }
        return msgspec.structs.replace(policy, **{k: v for k, v in changed.items() if v is not None})


class Result(msgspec.Struct, frozen=True):
    """One run. Rates 0..1; `evictions` are pieces (a history) or blocks (arrivals) that left memory."""

    policy: str
    method: str
    settings: Settings
    requests: int
    hits: int
    prompt_tokens: int
    tokens_saved: int
    evictions: int
    hit_rate: float
    token_rate: float
    block_rate: float | None = None


def of_tally(policy: str, method: str, settings: Settings, tally: Tally) -> Result:
    """Return a tally as a result."""
    return Result(
        policy, method, settings, tally.requests, tally.hits, tally.prompt_tokens, tally.tokens_saved, tally.evictions,
        tally.hit_rate(), tally.token_rate(),
    )  # fmt: skip


def is_history(path: Path) -> bool:
    """True when the source is a log or an exported history rather than arrivals."""
    return not path.is_file() or (is_container(path) and read_header(path)[0] != ARRIVALS)


def decide_again(path: Path, settings: Settings, sweep_s: int = 60) -> tuple[Result, Result, Redrive]:
    """Return (recorded, decided again, the run). Raises as `History`."""
    state, rest = open_history(History(path))
    run = Redrive(decode_state(encode_state(state)), settings.apply, _grid(path), sweep_s * SECOND_US)
    for moment in moments(state, rest):
        run.feed(moment.record)
    recorded = of_tally("as recorded", "log", Settings(), run.recorded)
    return recorded, of_tally(run.state.policy.ranking, "decide", settings, run.decided), run


def _grid(path: Path) -> int:
    """Return the recorded chunk size of prefill: the step whose multiples explain the seals of the first requests best."""
    sealed: dict[str, tuple[int, int, set[int]]] = {}
    state, rest = open_history(History(path))
    for seen, moment in enumerate(moments(state, rest)):
        command = moment.record.command
        if isinstance(command, cmd.AdoptPrefix) and not command.again:
            adopted = next((e.length for e in moment.record.events if isinstance(e, ev.PrefixAdopted)), 0)
            sealed[command.request] = (adopted, len(command.tokens) // TOKEN_BYTES - 1, set())  # type: ignore[arg-type]
        elif isinstance(command, cmd.SealPrefix) and command.request in sealed:
            sealed[command.request][2].add(command.length)
        if seen > FIRST_RECORDS:
            break
    told = list(sealed.values())[:MOST_REQUESTS]
    inner = Counter(length for _, last, lengths in told for length in lengths if length < last)
    steps = {USUAL_GRID} | {length for length, _ in inner.most_common(16)}
    return max(sorted(steps), key=lambda step: (_explained(step, told), step == USUAL_GRID))


def _explained(step: int, told: list[tuple[int, int, set[int]]]) -> int:
    """Return how many seals stand at multiples of `step`; a multiple without its seal counts against it."""
    score = 0
    for adopted, last, lengths in told:
        for position in range((adopted // step + 1) * step, last, step):
            score += 1 if position in lengths else -2
    return score


class Arrivals(msgspec.Struct, frozen=True):
    """A trace and the size of its blocks in bytes of KV."""

    trace: BlockTrace
    block_bytes: int


def load_arrivals(path: Path, kv_bytes_per_token: int = 0) -> Arrivals:
    """Read arrivals from a history, an imported file or a Mooncake trace. Raises as their readers."""
    if is_history(path):
        return _arrivals_of_history(path, kv_bytes_per_token)
    if is_container(path):
        _, notes = read_header(path)
        names = BlockArrival.__struct_fields__
        rows = (dict(zip(names, row, strict=False)) for row in read_rows(path, ARRIVALS))
        trace = build_trace((msgspec.convert(row, BlockArrival) for row in rows), notes["block_tokens"])
        return Arrivals(trace, trace.block_tokens * (kv_bytes_per_token or EXAMPLE_KV_BYTES))
    trace = build_trace(read_mooncake(path), BLOCK_TOKENS)
    return Arrivals(trace, BLOCK_TOKENS * (kv_bytes_per_token or EXAMPLE_KV_BYTES))


def _arrivals_of_history(path: Path, kv_bytes_per_token: int) -> Arrivals:
    state, rest = open_history(History(path))
    prompts = [p for moment in moments(state, rest) if (p := _prompt(moment)) is not None]
    sizes = [n for n in state.namespaces.values() if n.kv_bytes_per_token]
    block_tokens = sizes[0].block_size if sizes else 16
    per_token = kv_bytes_per_token or (sizes[0].kv_bytes_per_token if sizes else EXAMPLE_KV_BYTES)
    return Arrivals(chain_prompts(prompts, block_tokens), block_tokens * per_token)


def _prompt(moment: Moment) -> PromptArrival | None:
    command = moment.record.command
    if not isinstance(command, cmd.AdoptPrefix) or command.again or command.background:
        return None
    assert isinstance(command.tokens, bytes)
    return PromptArrival(command.at_us, command.namespace, command.tokens, 0, command.request)


def simulate_policy(arrivals: Arrivals, settings: Settings) -> Result:
    """Run arrivals through one ranking at one capacity (None: everything fits)."""
    trace = arrivals.trace
    capacity = settings.capacity_bytes
    blocks = trace.blocks if capacity is None else capacity // arrivals.block_bytes
    if settings.capacity_blocks is not None:
        blocks = settings.capacity_blocks
    outcome = simulate(trace, settings.policy, blocks)
    saved = sum(
        min(hits * trace.block_tokens, arrival.input_tokens)
        for hits, arrival in zip(outcome.hits, trace.arrivals, strict=True)
    )
    total = sum(arrival.input_tokens for arrival in trace.arrivals)
    hits = sum(1 for n in outcome.hits if n)
    requests = len(trace.arrivals)
    name = f"{settings.policy} (bound)" if settings.policy == BOUND else settings.policy
    asked = trace.asked_blocks
    return Result(
        name, "blocks", settings, requests, hits, total, saved, outcome.evictions,
        hits / requests if requests else 0.0, saved / total if total else 0.0,
        outcome.hit_blocks / asked if asked else 0.0,
    )  # fmt: skip


def unbounded_rate(arrivals: Arrivals) -> float:
    """Return the share of prompt blocks that an unbounded cache would have served."""
    hits, asked = unbounded_hits(arrivals.trace.arrivals)
    return hits / asked if asked else 0.0
