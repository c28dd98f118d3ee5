"""Parts of the product by themselves: a core state with entries, an engine with real KV in its cache."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import workloads
from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.record import encode_record
from mlxcel.core.state import State
from mlxcel.core.tokens import from_ids

HUGE = 1 << 60
KV_BYTES = 1024


class Core:
    """A state with one namespace and room for everything; commands are decided, recorded and applied as the service does."""

    def __init__(self, record: bool = False) -> None:
        self.state = State()
        self.record = record
        self.at_us = 0
        self.requests = 0
        policy = Policy(
            capacity_bytes=HUGE, disk_capacity_bytes=HUGE, max_entries=HUGE, ttl_us=0, disk_ttl_us=0, write_policy="off"
        )
        self.run(cmd.AdoptPolicy(at_us=0, policy=policy))
        key = NamespaceKey("benchmark")
        self.run(cmd.OpenNamespace(at_us=0, key=key, model_id="m", kv_bytes_per_token=KV_BYTES, reuse="prefix"))
        self.namespace = self.state.namespaces[next(iter(self.state.namespaces))]

    def run(self, command: cmd.Command) -> list[ev.Event]:
        """Decide and apply, with the record's bytes made in between if asked for."""
        events = decide(self.state, command)
        if self.record:
            encode_record(self.state, command, events)
        apply(self.state, command.at_us, events)
        return events

    def arrival(self, tokens: bytes, request: str = "") -> cmd.AdoptPrefix:
        """Return the command of an arriving prompt."""
        self.at_us += 1
        return cmd.AdoptPrefix(
            at_us=self.at_us,
            request=request or f"r{self.requests}",
            namespace=self.namespace.id,
            template_sig="raw",
            session_key="none",
            tokens=tokens,
        )

    def serve(self, prompt: Sequence[int], generated: Sequence[int] = ()) -> None:
        """Play one request: it arrives and is donated."""
        self.requests += 1
        name = f"r{self.requests}"
        self.run(self.arrival(from_ids(prompt), name))
        self.at_us += 1
        length = len(prompt) + len(generated)
        self.run(cmd.DonatePrefix(at_us=self.at_us, request=name, generated=from_ids(generated), length=length))

    def fill(self, prompts: Iterable[Sequence[int]]) -> None:
        """Play many requests."""
        for prompt in prompts:
            self.serve(prompt)


def load(model: Path, folder: Path) -> Any:
    """Load a model into an engine in this process; the calling thread is the engine's."""
    from mlxcel.engine.loading import load_engine

    return load_engine(model, digest_cache=folder / "digests.json")


def pieces_of(engine: Any, tokens: int, seed: int = 1, rows: int = 256) -> list[Any]:
    """Return pieces that cover `tokens` tokens: KV that the model really computed for the first, repeated for the others.

    Prefilling thousands of tokens takes minutes on a CPU; what is measured here moves bytes and never looks at them.
    """
    from mlxcel.engine.pieces import Piece

    rows = min(rows, tokens)
    cache = engine.new_cache()
    vocab = min(engine.facts.vocab_size, 40_000)
    engine.prefill(cache, from_ids(workloads.ids(f"pieces-{seed}", rows, vocab)))
    first = engine.copy_rows(cache, 0, rows)
    return [Piece(at, at + rows, first.rows) for at in range(0, tokens - rows + 1, rows)]


def assembled(engine: Any, pieces: Sequence[Any], reserve: int) -> Any:
    """Return a live cache that all pieces were copied into."""
    return engine.assemble([(piece, 0, piece.stop - piece.start) for piece in pieces], None, reserve)
