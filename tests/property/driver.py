"""A random driver of the core: any order of commands, checked after each step. Seeded; no clock."""

import random

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import decode_state, encode_state, fingerprint
from mlxcel.core.decide.lifecycle import compare_inventory
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.record import encode_record
from mlxcel.core.redecide import Logged, verify
from mlxcel.core.state import QUEUED, STORED, State
from mlxcel.core.tokens import from_ids

VOCABULARY = 3


class Live(msgspec.Struct):
    """What the driver remembers of a running request."""

    tokens: list[int]
    reuse: str


class Driver:
    """One random history. `run` plays it; each command is checked for purity and each state for its invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = State()
        self.log: list[bytes] = []
        self.at_us = 0
        self.live: dict[str, Live] = {}
        self.arrived = 0
        self.sequences = [self._ids(60) for _ in range(4)]

    def _ids(self, length: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(length)]

    def do(self, command: cmd.Command) -> list[ev.Event]:
        """Decide, check that nothing moved, record, apply, check what must always hold."""
        before = fingerprint(self.state)
        events = decide(self.state, command)
        assert fingerprint(self.state) == before, f"deciding {command} changed the state"
        self.log.append(encode_record(self.state, command, events))
        apply(self.state, command.at_us, events)
        self.check_limits(command, events)
        broken = broken_invariants(self.state)
        assert not broken, (len(self.log), command, events, broken)
        return events

    def open(self) -> None:
        """Adopt random settings."""
        rng = self.rng
        policy = Policy(
            capacity_bytes=rng.choice([64, 200, 1000]) * 10,
            max_entries=rng.choice([3, 8, 100]),
            ttl_us=rng.choice([0, 500, 5000]),
            min_prefix_tokens=4,
            block_size=4,
            segment_tokens=8,
            snapshot_capacity_bytes=rng.choice([100, 500]),
            snapshot_ttl_us=1000,
            disk_capacity_bytes=rng.choice([100, 600, 5000]),
            disk_ttl_us=rng.choice([0, 3000]),
            write_policy=rng.choice(["behind", "on-evict", "off"]),
            apc_enabled=rng.random() < 0.8,
            snapshot_max_entries=rng.choice([2, 100]),
            ranking=rng.choice(["leaf-lru", "leaf-lru", "entry-lru"]),
            strict_template_bucket=rng.random() < 0.2,
            memory_cap_bytes=rng.choice([0, 0, 900]),
        )
        self.do(cmd.AdoptPolicy(at_us=0, policy=policy))

    def namespace(self) -> tuple[int, str]:
        """Return a namespace of one of three kinds and how it is reused; opened if need be."""
        at = self.rng.randrange(3)
        bytes_per_token, reuse = ((10, "prefix"), (10, "snapshot"), (0, "snapshot"))[at]
        key = NamespaceKey(str(at), block_size=4)
        self.do(
            cmd.OpenNamespace(at_us=self.at_us, key=key, model_id="m", kv_bytes_per_token=bytes_per_token, reuse=reuse)
        )
        return self.state.by_namespace[key.digest()], reuse

    def run(self, steps: int) -> None:
        """Play `steps` random commands, then verify the log against a state built from nothing."""
        self.open()
        chances = [
            (0.35, self.adopt), (0.15, self.grow), (0.25, self.finish), (0.15, self.spill), (0.05, self.sweep),
            (0.02, self.reset), (0.03, self.recover), (0.12, self.operate),
        ]  # fmt: skip
        weights, actions = zip(*chances, strict=True)
        for _ in range(steps):
            self.at_us += self.rng.randrange(100)
            self.rng.choices(actions, weights)[0]()
            if self.rng.random() < 0.1:
                self.reload()
        self.verify()

    # ------------------------------------------------------------------ commands

    def adopt(self) -> None:
        """A request arrives whose prompt follows one of few sequences for a while; its restore ends well, badly or not yet."""
        rng = self.rng
        namespace, reuse = self.namespace()
        tokens = rng.choice(self.sequences)[: rng.randrange(1, 50)] + self._ids(rng.choice([0, 0, 3, 10]))
        self.arrived += 1
        request = f"r{self.arrived}"
        self.do(
            cmd.AdoptPrefix(
                at_us=self.at_us,
                request=request,
                namespace=namespace,
                template_sig=rng.choice("ssst"),
                session_key=rng.choice("ab"),
                tokens=from_ids(tokens),
                live_bytes=self.live_kv(),
                ttl_us=rng.choice([-1, -1, 300]),
            )
        )
        self.live[request] = Live(tokens, reuse)
        waiting = self.state.requests[request].restore
        if waiting and rng.random() < 0.2:
            lost = rng.choice([*waiting, 0])
            self.do(cmd.RecordRestore(at_us=self.at_us, request=request, lost=lost, error="unreadable"))
        elif waiting and rng.random() < 0.8:
            self.settle(request)

    def settle(self, request: str) -> bool:
        """Let a restore that is still open end well; True when there was one."""
        if not self.state.requests[request].restore:
            return False
        self.do(cmd.RecordRestore(at_us=self.at_us, request=request, live_bytes=self.rng.choice([0, 200])))
        return True

    def grow(self) -> None:
        """A running request seals what it has prefilled, or captures its state."""
        if not self.live:
            return
        request = self.rng.choice(list(self.live))
        if self.settle(request):
            return
        live, kept = self.live[request], self.state.requests[request].kept
        if live.reuse == "prefix":
            length = self.rng.randrange(len(live.tokens) + 1)
            self.do(cmd.SealPrefix(at_us=self.at_us, request=request, length=length, live_bytes=self.live_kv()))
        else:
            length = self.rng.randrange(kept, len(live.tokens) + 1)
            if length > kept:
                nbytes = self.rng.choice([20, 40])
                self.do(
                    cmd.CaptureSnapshot(
                        at_us=self.at_us,
                        request=request,
                        length=length,
                        nbytes=nbytes,
                        origin="boundary",
                        cuttable=self.rng.random() < 0.5,
                        live_bytes=self.live_kv(),
                    )
                )

    def finish(self) -> None:
        """A running request ends: mostly in health, else cancelled or failed."""
        if not self.live:
            return
        rng, request = self.rng, self.rng.choice(list(self.live))
        self.settle(request)
        live = self.live.pop(request)
        if rng.random() < 0.75:
            answer = self._ids(rng.randrange(1, 12))
            self.sequences[rng.randrange(4)] = (live.tokens + answer + self._ids(40))[:80]
            nbytes = 0 if live.reuse == "prefix" else 30
            length = len(live.tokens) + len(answer)
            self.do(
                cmd.DonatePrefix(
                    at_us=self.at_us,
                    request=request,
                    generated=from_ids(answer),
                    length=length,
                    state_nbytes=nbytes,
                    cuttable=rng.random() < 0.5,
                    live_bytes=self.live_kv(),
                )
            )
        else:
            outcome = rng.choice(["cancelled", "failed"])
            self.do(cmd.EndRequest(at_us=self.at_us, request=request, outcome=outcome))

    def spill(self) -> None:
        """The disk tier reports a few writes, some failed."""
        queued = [blob for blob in self.state.blobs.values() if blob.disk_state == QUEUED]
        self.rng.shuffle(queued)
        results = [
            cmd.SpillResult(b.id, 0, "disk full") if self.rng.random() < 0.1 else cmd.SpillResult(b.id, b.nbytes)
            for b in queued[: self.rng.randrange(1, 5)]
        ]
        if results:
            self.do(cmd.RecordSpills(at_us=self.at_us, results=results))

    def live_kv(self) -> int:
        """Bytes of live KV that the service would report."""
        return self.rng.choice([0, 0, 100, 400, 1200])

    def sweep(self) -> None:
        """Time to look for what expired."""
        self.do(cmd.SweepExpired(at_us=self.at_us, limit=self.rng.choice([1, 5, 64])))

    def reset(self) -> None:
        """The operator empties the cache, now and then with its pins."""
        self.do(cmd.ResetCache(at_us=self.at_us, include_pins=self.rng.random() < 0.3))

    def operate(self) -> None:
        """The operator pins, unpins, deletes, promotes or demotes; or memory runs short."""
        rng, at_us = self.rng, self.at_us
        entry = rng.choice([*self.state.entries, 999])
        name = rng.choice("xyz")
        errand = f"p{len(self.log)}"
        command = rng.choice(
            [
                cmd.PinPrefix(at_us=at_us, name=name, entry=entry),
                cmd.UnpinPrefix(at_us=at_us, name=name),
                cmd.UnpinPrefix(at_us=at_us, name=name),
                cmd.DeleteEntries(at_us=at_us, entries=[entry, rng.choice([*self.state.entries, 999])]),
                cmd.PromoteEntry(at_us=at_us, request=errand, entry=entry),
                cmd.DemoteEntry(at_us=at_us, entry=entry),
                cmd.ShrinkMemory(at_us=at_us, target_bytes=rng.randrange(300), limit=rng.choice([1, 64])),
            ]
        )
        self.do(command)
        waiting = self.state.requests[errand].restore if errand in self.state.requests else []
        if waiting:
            lost = rng.choice([0, waiting[0]])
            error = "unreadable" if rng.random() < 0.2 else ""
            self.do(cmd.RecordRestore(at_us=at_us, request=errand, lost=lost if error else 0, error=error))
            assert errand not in self.state.requests

    def recover(self) -> None:
        """The process dies and starts again with most of what was written."""
        blobs = self.state.blobs.values()
        inventory = {b.key: b.nbytes for b in blobs if b.disk_state == STORED and self.rng.random() < 0.95}
        inventory |= {b.key: b.nbytes for b in blobs if b.disk_state == QUEUED and self.rng.random() < 0.5}
        missing, found, _ = compare_inventory(self.state, inventory)
        self.do(cmd.Recover(at_us=self.at_us, missing=missing, found=found))
        self.live = {}

    # ------------------------------------------------------------------ checks

    def check_limits(self, command: cmd.Command, events: list[ev.Event]) -> None:
        """Whatever a decision adds to memory stays within every limit, live KV counted."""
        state, policy = self.state, self.state.policy
        back = [e for e in events if isinstance(e, ev.PieceRestored) and e.nodes]
        if back or any(isinstance(e, ev.PieceSealed) for e in events):
            assert state.memory_bytes[False] <= policy.capacity_bytes
        if any(isinstance(e, ev.SnapshotTaken) for e in events):
            assert state.memory_bytes[True] <= policy.snapshot_capacity_bytes
            assert len(state.lru["memory", True]) <= policy.snapshot_max_entries
        if back or any(isinstance(e, ev.PieceSealed | ev.SnapshotTaken) for e in events):
            held = sum(state.memory_bytes.values()) + getattr(command, "live_bytes", 0)
            assert not policy.memory_cap_bytes or held <= policy.memory_cap_bytes
        if back or any(isinstance(e, ev.EntryDonated) for e in events):
            assert len(state.resident) <= policy.max_entries

    def reload(self) -> None:
        """Go on from the checkpoint's bytes: nothing may be lost by that."""
        reloaded = decode_state(encode_state(self.state))
        assert fingerprint(reloaded) == fingerprint(self.state)
        assert not broken_invariants(reloaded)
        self.state = reloaded

    def verify(self) -> None:
        """Deciding the whole log again gives the same events and the same state."""
        logged = [Logged(seq, False, payload) for seq, payload in enumerate(self.log)]
        state, decided, found = verify(logged)
        assert not found
        assert decided == len(self.log)
        assert fingerprint(state) == fingerprint(self.state)
