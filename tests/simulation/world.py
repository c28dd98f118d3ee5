"""One simulated life of the service: clients, faults, crashes and restarts from one seed, with everything checked often."""

import random
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.policy import Policy
from mlxcel.core.redecide import Logged, verify
from mlxcel.core.tokens import from_ids
from mlxcel.ports import CacheOptions, CacheScope, Delta, Failed, Finished, GenerateRequest, Overloaded, SamplingParams
from mlxcel.service.cache import CacheService
from mlxcel.service.generation import GenerationService, Limits
from mlxcel.service.loop import EngineLoop
from mlxcel.service.questions import Questions
from mlxcel.service.rates import Rates
from mlxcel.service.recover import fold_log, settle
from mlxcel.service.reuse import Reuse
from mlxcel.service.tiers import Tiers
from tests.simulation.disk import PretendDisk, PretendLog
from tests.simulation.engine import ROW_BYTES, PretendEngine, answer_of


class Client:
    """One request and what came back."""

    def __init__(self, prompt: list[int], max_tokens: int) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.said: list[int] = []
        self.end: Finished | Failed | None = None

    def emit(self, item: Any) -> None:
        """Take one stream item."""
        assert self.end is None, "nothing follows the end of a stream"
        if isinstance(item, Delta):
            self.said += item.tokens
        elif isinstance(item, Finished | Failed):
            self.end = item

    def check(self) -> None:
        """A finished answer is the pretend model's own; a failed one is a piece of it; cached tokens are in bounds."""
        expected = answer_of(self.prompt, self.max_tokens)
        assert self.said == expected[: len(self.said)]
        if isinstance(self.end, Finished):
            assert self.said == expected
            assert 0 <= self.end.cached_tokens < len(self.prompt)
        if isinstance(self.end, Failed) and self.end.kind == "engine_fault":
            assert self.end.message.startswith("decoding failed: pretend"), self.end.message


class World:
    """Everything that one seed decides. `step` does one random thing; `check` looks at all that must hold."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = rng.choice(("prefix", "hybrid", "state", "window"))
        self.log, self.now = PretendLog(), 1_000_000
        self.disk = PretendDisk(self.log, queue_bytes=rng.choice((600, 1 << 20)))
        self.policy = Policy(
            capacity_bytes=rng.choice((0, 800, 3000, 1 << 20)),
            max_entries=rng.choice((3, 50)),
            ttl_us=rng.choice((0, 20_000_000)),
            min_prefix_tokens=4,
            apc_enabled=self.kind == "prefix" and rng.random() < 0.8,
            block_size=4,
            segment_tokens=8,
            snapshot_capacity_bytes=rng.choice((100, 4000)),
            disk_capacity_bytes=rng.choice((300, 5000)),
            disk_ttl_us=rng.choice((0, 60_000_000)),
            write_policy=rng.choice(("behind", "behind", "on-evict", "off")),
        )
        self.bases = [[rng.randrange(VOCAB_USED) for _ in range(80)] for _ in range(4)]
        self.clients: dict[str, Client] = {}
        self.numbers = 0
        self.requests_done = 0
        self.start("begin")

    # ------------------------------------------------------------------ life and death

    def start(self, detail: str) -> None:
        """Start the service over what log and disk hold."""
        self.engine = PretendEngine(self.kind)
        self.service = GenerationService(Limits(6, 3, 8, 0), lambda: self.now / 1e6)
        self.disk.report = lambda outcomes: self.service.post("spilled", outcomes)
        checkpoint, tail = self.log.newest()
        folded = fold_log(checkpoint, tail)
        self.cache = CacheService(folded.state, self.log, Tiers(self.engine, self.disk), self.tick)
        if self.log.wants_checkpoint():
            self.cache.checkpoint()
        self.cache.run(cmd.AdoptPolicy(at_us=self.tick(), policy=self.policy))
        orphans = settle(self.cache, self.disk.inventory(), 0, detail)
        self.disk.delete(0, orphans)
        rates = Rates()
        reuse = Reuse(self.cache, self.engine, self.disk, rates, self.policy.block_size, lambda: self.now / 1e6)
        self.loop = EngineLoop(
            self.service, self.engine, reuse, Questions(self.cache, self.engine, self.disk, rates, "sha256")
        )
        self.service.set_phase("ready", facts=self.engine.facts)

    def tick(self) -> int:
        """Let a little time pass; returns the time."""
        self.now += self.rng.randrange(1, 50_000)
        return self.now

    def crash(self) -> None:
        """kill -9 or a power cut: queued writes are gone, and part of the log that was not durable."""
        self.log.crash(self.rng)
        self.disk.crash()
        self.clients.clear()
        self.start("crash")

    def stop_and_start(self) -> None:
        """A clean stop: everything is finished, written and durable."""
        self.settle_down()
        self.disk.flush(0)
        self.pump()
        self.cache.checkpoint()
        self.log.sync()
        self.start("stop")

    # ------------------------------------------------------------------ one thing at a time

    def step(self) -> None:
        """Do one random thing."""
        chance = self.rng.random()
        if chance < 0.2:
            self.submit()
        elif chance < 0.62:
            self.pump()
        elif chance < 0.72:
            self.disk.write_one()
        elif chance < 0.8:
            self.disk.read_one(unavailable=self.rng.random() < 0.05)
        elif chance < 0.84:
            self.log.sync()
        elif chance < 0.88 and self.clients:
            self.service.cancel(self.rng.choice(list(self.clients)))
        elif chance < 0.9:
            self.now += self.rng.choice((1_000_000, 30_000_000))
            self.service.post("chore", self.cache.sweep)
        elif chance < 0.91:
            self.service.post("chore", lambda: self.cache.run(cmd.ResetCache(at_us=self.tick())))
        elif chance < 0.92:
            self.service.post("chore", self.cache.checkpoint)
        elif chance < 0.94:
            self.disk.full = not self.disk.full and self.rng.random() < 0.5
        elif chance < 0.96 and self.disk.stored:
            self.disk.flipped.add(self.rng.choice(sorted(self.disk.stored)))
        elif chance < 0.97:
            self.engine.fail_next = True
        elif chance < 0.985:
            self.crash()
        elif chance < 0.99:
            self.stop_and_start()
        else:
            self.disk.stored.pop(self.rng.choice(sorted(self.disk.stored)), None) if self.disk.stored else None

    def submit(self) -> None:
        """A client sends a prompt that shares something with others; sometimes an extended old answer."""
        rng = self.rng
        base = rng.choice(self.bases)
        prompt = base[: rng.randrange(2, 70)] + [rng.randrange(VOCAB_USED) for _ in range(rng.choice((0, 1, 6)))]
        client = Client(prompt, rng.randrange(1, 6))
        self.numbers += 1
        name = f"r{self.numbers}"
        if rng.random() < 0.5:
            at = rng.randrange(len(self.bases))
            self.bases[at] = (prompt + answer_of(prompt, client.max_tokens) + self.bases[at][:40])[:80]
        options = CacheOptions(
            read=rng.random() < 0.95, store=rng.random() < 0.95, ttl_s=5.0 if rng.random() < 0.05 else None
        )
        request = GenerateRequest(
            request_id=name,
            tokens=from_ids(prompt),
            params=SamplingParams(),
            max_tokens=client.max_tokens,
            scope=CacheScope(session_key=rng.choice("ab")),
            options=options,
            boundaries=tuple(sorted({rng.randrange(1, len(prompt) + 1)})) if rng.random() < 0.5 else (),
        )
        try:
            self.service.submit(request, client.emit)
        except Overloaded:
            return
        self.clients[name] = client

    def pump(self) -> None:
        """Let the engine thread's loop run a step, if it would not just wait."""
        if self.loop._busy() or not self.service.inbox.empty():
            self.tick()
            self.loop._step()

    def settle_down(self) -> None:
        """Let everything that runs come to its end."""
        for _ in range(3000):
            self.disk.read_one()
            self.pump()
            if not self.loop._jobs and self.service.inbox.empty():
                return
        raise AssertionError("requests hang")

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Invariants, tiers and state agree; ended requests got the right answer and left nothing behind."""
        state = self.cache.state
        assert not self.cache.suspended, self.cache.suspended
        assert not broken_invariants(state)
        held = {blob.id: blob.nbytes for blob in state.blobs.values() if blob.memory_refs}
        pieces = {blob: len(piece[1]) for blob, piece in self.cache.tiers.pieces.items()}
        assert held == pieces, "memory tier and state disagree"
        assert state.memory_bytes[False] <= self.policy.capacity_bytes
        assert state.memory_bytes[True] <= self.policy.snapshot_capacity_bytes
        for name, client in list(self.clients.items()):
            client.check()
            if client.end is not None:
                del self.clients[name]
                self.requests_done += 1
        running = set(state.requests) - set(self.loop._jobs)
        assert not running, "the core holds requests that nobody runs"

    def verify_history(self) -> None:
        """The log decides the same again, and ends in the live state."""
        logged = [Logged(at + 1, checkpoint, payload) for at, (checkpoint, payload) in enumerate(self.log.records)]
        state, _, found = verify(logged)
        assert not found, found
        assert fingerprint(state) == fingerprint(self.cache.state)


VOCAB_USED = 3
__all__ = ["ROW_BYTES", "World"]
