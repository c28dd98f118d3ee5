"""Random sequences of requests against one cache, through the real service; each hit is compared with cold runs."""

import dataclasses
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from mlxcel import bootstrap
from mlxcel.config.settings import Settings
from mlxcel.core import events as ev
from mlxcel.core import tokens as token_bytes
from mlxcel.engine.engine import MlxEngine
from mlxcel.ports import Failed
from mlxcel.service.rates import Rates
from tests.equality.clients import Asked, Clients
from tests.equality.cold import Cold
from tests.equality.lineage import Witness
from tests.equality.passes import Started

REQUESTS = (6, 10)  # least number in a history, drawn; requests that come together may make it a few more
COLD_CHECKED = 4  # of the requests that adopted nothing one in so many is compared too
IDLE = 64  # steps of warm-up at most

# What a history's cache may hold, in tokens of KV or whole states; "plenty" is never reached.
TIGHT, SMALL, PLENTY = 60, 250, 1 << 30


class _NoRates(Rates):
    """Tiny models prefill faster than any disk; nothing measured means that restoring is always worth it."""

    def measured(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclasses.dataclass
class Figures:
    """What was compared, and how far apart it was."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    farthest: float = 0.0  # from an unsplit run, of raw logits
    beyond: int = 0  # comparisons with an unsplit run that differ by more than the bound
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Figures") -> None:
        self.counts += other.counts
        self.farthest = max(self.farthest, other.farthest)
        self.beyond += other.beyond
        self.wrong += other.wrong

    def __str__(self) -> str:
        said = ", ".join(f"{name} {number}" for name, number in sorted(self.counts.items()))
        return f"{said}; farthest from unsplit {self.farthest:.3g}, beyond the bound {self.beyond}, wrong {len(self.wrong)}"


class Play:
    """One history over one data directory. `run` plays it; `figures` tells what was seen."""

    def __init__(self, seed: int, engine: MlxEngine, witness: Witness, data_dir: Path, bound: float) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.engine = engine
        self.witness = witness
        self.cold = Cold(engine._model, engine._new_layers)
        self.bound = bound
        self.figures = Figures()
        self.data_dir = data_dir
        self.settings = self._settings()
        self.clients = Clients(self.rng)
        self._parts: Any = None
        self._service: Any = None

    def run(self) -> Figures:
        """Play, compare, and leave nothing behind."""
        self.witness.forget()
        self.data_dir.mkdir(parents=True)
        self._open()
        try:
            enough = self.rng.randint(*REQUESTS)
            while self.clients.sent < enough:
                self._step()
            self._check_state()
        finally:
            self._close()
            shutil.rmtree(self.data_dir)
        self.figures.counts["sequences"] += 1
        return self.figures

    # ------------------------------------------------------------------ the house

    def _settings(self) -> Settings:
        rng, facts = self.rng, self.engine.facts
        row = facts.kv_bytes_per_token
        state = 0
        if facts.reuse == "snapshot":
            cache = self.engine.new_cache()
            self.engine.prefill(cache, token_bytes.from_ids(range(3, 99)))
            state = self.engine.piece_bytes(self.engine.copy_state(cache, 96 if row else 0))
        room = rng.choice((TIGHT, SMALL, PLENTY, PLENTY))
        states = {TIGHT: 2, SMALL: 5, PLENTY: 1 << 20}[room]
        disk = rng.choice((300, 1000, PLENTY, PLENTY))
        return Settings(
            model=facts.path,
            data_dir=self.data_dir,
            prefill_chunk_size=rng.choice((16, 32, 64)),
            prompt_cache_min_prefix=rng.choice((1, 8, 16)),
            prompt_cache_capacity_bytes=min(room * row, 64 << 20) or 64 << 20,
            snapshot_capacity_bytes=min(states * state, 64 << 20) or 64 << 20,
            disk_capacity_bytes=min(disk * row + disk // 25 * state, 64 << 20),
            disk_write_policy=rng.choice(("behind", "behind", "behind", "on-evict", "off")),
            apc_enabled=rng.random() < 0.85,
            apc_block_size=rng.choice((4, 16, 16, 16)),
            donate_cancelled=rng.random() < 0.8,
            max_batch_size=rng.choice((1, 4, 8)),
        )

    def _open(self) -> None:
        self._service = bootstrap.new_service(self.settings)
        with mock.patch.object(bootstrap, "_load_model", return_value=self.witness):
            self._parts = bootstrap.build(self.settings, self._service)
        self._parts.loop.reuse.rates = _NoRates()
        self._parts.cache.watchers.append(self._watch)
        self._service.set_phase("ready", facts=self.engine.facts)

    def _watch(self, seq: int, command: Any, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, ev.PieceEvicted):
                self.figures.counts[f"pieces evicted from {event.tier}"] += 1
            elif isinstance(event, ev.RequestEnded) and event.outcome == "warmed":
                self.figures.counts["next turns warmed"] += 1
            elif isinstance(event, ev.SnapshotTaken):
                self.figures.counts[f"snapshots: {event.origin}"] += 1

    def _close(self) -> None:
        bootstrap.close(self._parts)

    def _check_state(self) -> None:
        assert not self._parts.cache.suspended, self._parts.cache.suspended
        broken = self._parts.loop.questions.check()["broken"]
        assert broken == [], f"seed {self.seed}: {broken}"

    def _restart(self) -> None:
        self._check_state()
        self._close()
        self._open()
        self.figures.counts["restarts"] += 1

    def _demote(self) -> None:
        """Write everything behind, then let memory give up a part of what it holds."""
        if self._parts.spill is not None:
            assert self._parts.spill.flush(30.0)
        self._parts.loop._drain_inbox(block=False)
        self._parts.loop.questions.shrink(self.rng.choice((0.0, 0.0, 0.5)))

    def _idle(self) -> None:
        for _ in range(IDLE):
            if not self._parts.loop._warms():
                return
            self._loop()

    def _loop(self) -> None:
        assert self._parts.loop._step()

    # ------------------------------------------------------------------ one step of a history

    def _step(self) -> None:
        rng = self.rng
        self._together(self.clients.draw(rng.choice((1, 1, 1, 1, 2, 3))))
        if rng.random() < 0.4:
            self._idle()
        chance = rng.random()
        if chance < 0.12:
            self._restart()
        elif chance < 0.5:
            self._demote()
        elif chance < 0.53:
            self._parts.loop.questions.reset()

    def _together(self, asked: list[Asked]) -> None:
        """Send requests at once or one a few steps after the other; step until all have ended; compare."""
        waiting = list(asked)
        running: list[Asked] = []
        seen = len(self.witness.started)
        while waiting or not all(said.over() for said in running):
            if waiting:
                running.append(waiting.pop(0))
                self._service.submit(running[-1].request, running[-1].items.append)
                for _ in range(self.rng.choice((0, 0, 1, 3, 8))):
                    self._round(running)
            else:
                self._round(running)
        for said in asked:
            self._book(said)
            self.clients.heard(said)
        started = self.witness.started[seen:]
        hits = Counter((said.prompt, said.items[-1].cached_tokens) for said in asked if said.healthy())
        known = Counter((one.prompt, one.adopted) for one in started)
        assert not hits - known, f"seed {self.seed}: claimed {hits - known}, adopted {known - hits}"
        for one in started:
            self._compare(one)

    def _round(self, running: list[Asked]) -> None:
        if all(said.over() for said in running):
            return
        for said in running:
            if said.patience == 0 and not said.over():
                self._service.cancel(said.request.request_id)
            said.patience -= 1
        self._loop()

    def _book(self, said: Asked) -> None:
        end, counts = said.items[-1], self.figures.counts
        counts["requests"] += 1
        counts[f"asked: {said.kind}"] += 1
        if isinstance(end, Failed):
            assert end.kind == "cancelled", end
            counts["cancelled"] += 1
            return
        assert end.prompt_tokens == len(said.prompt)
        if end.cached_tokens:
            counts[f"hits from {end.source}"] += 1
            counts["tokens adopted"] += end.cached_tokens

    # ------------------------------------------------------------------ comparing

    def _compare(self, one: Started) -> None:
        figures, counts = self.figures, self.figures.counts
        if not one.adopted and self.rng.randrange(COLD_CHECKED):
            return
        counts[f"compared: {'hits' if one.adopted else 'cold'}"] += 1
        counts["compared: hits beside other answers"] += bool(one.adopted) and one.beside
        expected = self.cold.logits_of(one.last)
        if np.array_equal(one.logits.view(np.uint32), expected.view(np.uint32)):
            rests = " on answers decoded together" if self.cold.batched else ""
            counts[f"the same bits: {'rows of several runs' if self.cold.joined else 'one run'}{rests}"] += 1
        else:
            where = f"seed {self.seed}, prompt of {len(one.prompt)} tokens, {one.adopted} adopted"
            figures.wrong.append(f"{where}: differs by {np.abs(one.logits - expected).max():.3g}")
        distance = float(np.abs(one.logits - self.cold.unsplit(one.prompt)).max())
        figures.farthest = max(figures.farthest, distance)
        figures.beyond += distance > self.bound
