"""Drives the core as the service does and keeps the log: arrivals, chunked prefill, donation, writes behind, restores."""

import random
from pathlib import Path

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import encode_state
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.record import encode_record
from mlxcel.core.redecide import Logged
from mlxcel.core.state import QUEUED, State
from mlxcel.core.tokens import from_ids
from storage.event_log.recovery import open_log
from storage.event_log.settings import LogSettings

GRID = 512
START_US = 1_700_000_000_000_000


class Driver:
    """A cache without an engine. `payloads`: the log so far as (is checkpoint, bytes)."""

    def __init__(self, policy: Policy, kv_bytes: int = 100, reuse: str = "prefix", block_size: int = 16) -> None:
        self.state = State()
        self.payloads: list[tuple[bool, bytes]] = [(True, encode_state(self.state))]
        self.now_us = START_US
        self.hits: dict[str, int] = {}
        self.kv_bytes, self.reuse, self.block_size = kv_bytes, reuse, block_size
        self.run(cmd.AdoptPolicy(at_us=self.now_us, policy=policy))
        self.namespace = self.open("model")

    def open(self, fingerprint: str, media: bytes | None = None, model: str = "tiny") -> int:
        """Return the number of a namespace, opened if need be."""
        key = NamespaceKey(fingerprint, block_size=self.block_size)
        if media is not None:
            key = NamespaceKey(fingerprint, block_size=self.block_size, media_digest=media)
        self.run(
            cmd.OpenNamespace(
                at_us=self.now_us, key=key, model_id=model, kv_bytes_per_token=self.kv_bytes, reuse=self.reuse
            )
        )
        return self.state.by_namespace[key.digest()]

    def run(self, command: cmd.Command) -> list[ev.Event]:
        """Decide, record, apply. Like the service, nothing decided is nothing recorded."""
        events = decide(self.state, command)
        if events:
            self.payloads.append((False, encode_record(self.state, command, events)))
            apply(self.state, command.at_us, events)
        return events

    def arrive(self, name: str, ids: list[int], session: str = "s", template: str = "t", namespace: int = 0) -> int:
        """Look a prompt up, restore and prefill it; returns the tokens adopted."""
        command = cmd.AdoptPrefix(
            at_us=self.now_us, request=name, namespace=namespace or self.namespace, template_sig=template,
            session_key=session, tokens=from_ids(ids),
        )  # fmt: skip
        adopted = next((e for e in self.run(command) if isinstance(e, ev.PrefixAdopted)), None)
        if adopted is not None and adopted.restore:
            self.run(cmd.RecordRestore(at_us=self.now_us, request=name))
        length = adopted.length if adopted else 0
        self.hits[name] = length
        if self.reuse == "prefix":
            for stop in [*range((length // GRID + 1) * GRID, len(ids) - 1, GRID), len(ids) - 1]:
                self.run(cmd.SealPrefix(at_us=self.now_us, request=name, length=stop))
        return length

    def finish(self, name: str, answer: list[int]) -> None:
        """Donate prompt and answer, then let the writes behind come through."""
        request = self.state.requests[name]
        length = len(request.tokens) // 4 + len(answer)
        self.run(
            cmd.DonatePrefix(
                at_us=self.now_us, request=name, generated=from_ids(answer), length=length,
                state_nbytes=0 if self.reuse == "prefix" else 500, completion_tokens=len(answer),
            )
        )  # fmt: skip
        self.write_behind()

    def write_behind(self) -> None:
        """All queued writes succeed."""
        queued = [b for b in self.state.blobs.values() if b.disk_state == QUEUED]
        if queued:
            self.run(cmd.RecordSpills(at_us=self.now_us, results=[cmd.SpillResult(b.id, b.nbytes) for b in queued]))

    def serve(self, name: str, ids: list[int], answer: list[int] | None = None, **scope: object) -> int:
        """One request from arrival to donation; a second passes."""
        length = self.arrive(name, ids, **scope)  # type: ignore[arg-type]
        self.now_us += 500_000
        self.finish(name, answer if answer is not None else [7] * 8)
        self.now_us += 500_000
        return length

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_us += int(seconds * 1e6)

    def logged(self) -> list[Logged]:
        """Return the log as the replay reads it."""
        return [Logged(n, checkpoint, payload) for n, (checkpoint, payload) in enumerate(self.payloads, start=1)]

    def write_log(self, data_dir: Path) -> Path:
        """Write the log into `data_dir`/log; returns data_dir."""
        opened = open_log(data_dir / "log", LogSettings(delay_s=0.0))
        for checkpoint, payload in self.payloads:
            if checkpoint:
                opened.writer.open_segment(payload)
            else:
                opened.writer.append(payload)
        opened.writer.close()
        return data_dir


def policy(**settings: object) -> Policy:
    """Return settings for tests: a roomy cache, no disk, no time limits."""
    plain: dict[str, object] = {
        "capacity_bytes": 1 << 30, "ttl_us": 0, "snapshot_ttl_us": 0, "disk_ttl_us": 0, "write_policy": "off",
        "max_entries": 100_000,
    }  # fmt: skip
    return Policy(**(plain | settings))  # type: ignore[arg-type]


def conversations(seed: int, requests: int) -> list[tuple[str, str, list[int], list[int], bool]]:
    """Return (name, session, prompt, answer, overlaps the next) for chats that come back at random."""
    rng = random.Random(seed)
    system = [[rng.randrange(1000) for _ in range(rng.randrange(40, 700))] for _ in range(4)]
    chats: dict[str, list[int]] = {}
    made = []
    for n in range(requests):
        if chats and rng.random() < 0.6:
            session = rng.choice(sorted(chats))
        else:
            session = f"chat{n}"
            chats[session] = list(rng.choice(system))
        prompt = chats[session] + [rng.randrange(1000) for _ in range(rng.randrange(10, 300))]
        answer = [rng.randrange(1000) for _ in range(rng.randrange(5, 120))]
        chats[session] = prompt + answer
        if len(chats[session]) > 4000:
            del chats[session]
        made.append((f"r{n}", session, prompt, answer, rng.random() < 0.3))
    return made


def play(driver: Driver, made: list[tuple[str, str, list[int], list[int], bool]]) -> None:
    """Serve the requests; some answers are still being written while the next request arrives."""
    open_one: tuple[str, list[int]] | None = None
    for name, session, prompt, answer, overlaps in made:
        driver.arrive(name, prompt, session)
        driver.wait(1.5)
        if open_one is not None:
            driver.finish(*open_one)
            open_one = None
        if overlaps:
            open_one = (name, answer)
        else:
            driver.finish(name, answer)
        driver.wait(2)
    if open_one is not None:
        driver.finish(*open_one)
