"""How fast the log is written, read, verified and started from. Prints one JSON object.

The mix of each request: one hit of 1 to 4 k tokens, one donation of 300 new tokens, two ticks (a write booked, a sweep that
found nothing). `--records` sets the length (a million takes some minutes to decide once, and again to verify).
"""

import argparse
import json
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import Bench
from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import decode_state, encode_state
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.record import decode_record, encode_record
from mlxcel.core.redecide import Logged, verify
from mlxcel.core.state import QUEUED, State
from mlxcel.core.tokens import from_ids
from storage.event_log.reader import LogReader
from storage.event_log.recovery import open_log

Result = TypeVar("Result")

KV_BYTES = 100
CONVERSATIONS = 400
SEED = 11
TITLE = "The log: appending, reading, verifying, starting"


def _run(state: State, command: cmd.Command) -> bytes:
    events = decide(state, command)
    payload = encode_record(state, command, events)
    apply(state, command.at_us, events)
    return payload


def _opened(capacity_tokens: int) -> tuple[State, list[bytes]]:
    state = State()
    settings = Policy(
        capacity_bytes=KV_BYTES * capacity_tokens, max_entries=1 << 30, ttl_us=0, disk_ttl_us=0,
        disk_capacity_bytes=KV_BYTES * capacity_tokens,
    )  # fmt: skip
    first = _run(state, cmd.AdoptPolicy(at_us=1, policy=settings))
    key = NamespaceKey("model")
    command = cmd.OpenNamespace(at_us=2, key=key, model_id="m", kv_bytes_per_token=KV_BYTES, reuse="prefix")
    return state, [first, _run(state, command)]


def make_records(records: int) -> list[bytes]:
    """Decide the mix; returns the log's payloads."""
    rng = random.Random(SEED)
    state, payloads = _opened(CONVERSATIONS * 5000)
    chats = [[rng.randrange(50_000) for _ in range(700)] for _ in range(CONVERSATIONS)]
    now, number = 1_700_000_000_000_000, 0
    queued: list[int] = []
    while len(payloads) < records:
        at = rng.randrange(CONVERSATIONS)
        if len(chats[at]) > 4000:
            chats[at] = chats[at][:700]
        question = [rng.randrange(50_000) for _ in range(150)]
        answer = [rng.randrange(50_000) for _ in range(150)]
        prompt = chats[at] + question
        name, now = f"r{number}", now + 1000
        payloads.append(_run(state, cmd.AdoptPrefix(
            at_us=now, request=name, namespace=1, template_sig="t", session_key=f"chat{at}", tokens=from_ids(prompt)
        )))  # fmt: skip
        next_blob = state.next_blob
        payloads.append(_run(state, cmd.DonatePrefix(
            at_us=now, request=name, generated=from_ids(answer), length=len(prompt) + len(answer), completion_tokens=150
        )))  # fmt: skip
        queued = [
            b for b in range(next_blob, state.next_blob) if b in state.blobs and state.blobs[b].disk_state == QUEUED
        ]
        results = [cmd.SpillResult(b, state.blobs[b].nbytes) for b in queued]
        payloads.append(_run(state, cmd.RecordSpills(at_us=now, results=results)))
        payloads.append(_run(state, cmd.SweepExpired(at_us=now)))
        chats[at] = prompt + answer
        number += 1
    return payloads


def big_checkpoint(entries: int) -> bytes:
    """Return a state of many entries: a shared prefix of 512 tokens and 64 tokens of their own each."""
    rng = random.Random(SEED)
    state, _ = _opened(entries * 80 + 1024)
    shared = [rng.randrange(50_000) for _ in range(512)]
    for number in range(entries):
        tokens = from_ids(shared + [rng.randrange(50_000) for _ in range(64)])
        name = f"r{number}"
        _run(state, cmd.AdoptPrefix(
            at_us=number + 10, request=name, namespace=1, template_sig="t", session_key=f"s{number}", tokens=tokens
        ))  # fmt: skip
        _run(state, cmd.DonatePrefix(at_us=number + 10, request=name, generated=b"", length=576))
    return encode_state(state)


class Clock:
    """Wall and processor seconds of each step: on a busy machine the two part, and the second is the program's own."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.processor: dict[str, float] = {}

    def run(self, name: str, action: Callable[..., Result], *args: object) -> Result:
        """Call the action and note how long it took under `name`."""
        wall, processor = time.perf_counter(), time.process_time()
        result = action(*args)
        self.wall[name], self.processor[name] = time.perf_counter() - wall, time.process_time() - processor
        return result


def _append_all(directory: Path, payloads: list[bytes]) -> None:
    opened = open_log(directory)
    opened.writer.open_segment(encode_state(State()))
    for payload in payloads:
        opened.writer.append(payload)
    opened.writer.wait_durable(opened.writer.next_seq() - 1, 600)
    opened.writer.close()


def _read_all(directory: Path) -> int:
    count = 0
    for _, payload, checkpoint in LogReader(directory).flagged_records():
        if not checkpoint:
            decode_record(payload)
        count += 1
    return count


def _verify_all(directory: Path) -> int:
    logged = (Logged(seq, checkpoint, payload) for seq, payload, checkpoint in LogReader(directory).flagged_records())
    _, decided, found = verify(logged)
    assert not found, found[0]
    return decided


def _start(directory: Path) -> None:
    opened = open_log(directory)
    assert opened.checkpoint is not None
    decode_state(opened.checkpoint)
    opened.writer.close()


def measure(records: int, entries: int) -> dict[str, object]:
    """Return what was measured, rates in records a second."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        log, big = Path(scratch) / "log", Path(scratch) / "big"
        payloads = clock.run("decide", make_records, records)
        clock.run("append", _append_all, log, payloads)
        log_bytes = sum(path.stat().st_size for path in log.iterdir())
        total, size = len(payloads), sum(map(len, payloads))
        del payloads
        clock.run("read", _read_all, log)
        clock.run("verify", _verify_all, log)
        checkpoint = big_checkpoint(entries)
        opened = open_log(big)
        opened.writer.open_segment(checkpoint)
        opened.writer.close()
        clock.run("start", _start, big)
    steps = ("decide", "append", "read", "verify")
    return {
        "machine": f"{platform.machine()} {platform.system()}, Python {platform.python_version()}",
        "records": total,
        "payload_bytes_per_record": round(size / total, 1),
        "log_bytes": log_bytes,
        "records_per_s": {step: round(total / clock.wall[step]) for step in steps},
        "records_per_processor_s": {step: round(total / clock.processor[step]) for step in steps},
        "checkpoint_entries": entries,
        "checkpoint_bytes": len(checkpoint),
        "start_s": round(clock.wall["start"], 3),
        "start_processor_s": round(clock.processor["start"], 3),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        // (1024 if sys.platform == "linux" else 1 << 20),
    }


def run(bench: Bench) -> None:
    """Book what `measure` finds, for a log of moderate size."""
    found = measure(bench.size(100_000, 2_000), bench.size(20_000, 200))
    for kind, words in (
        ("records_per_s", "records a second"),
        ("records_per_processor_s", "records a processor second"),
    ):
        rates = found[kind]
        assert isinstance(rates, dict)
        for step, rate in rates.items():
            bench.value(f"{step}, {words}", [rate], "1/s", "higher")
    for name, words, unit in (
        ("payload_bytes_per_record", "bytes a record", "B"),
        ("start_s", f"start from a checkpoint of {found['checkpoint_entries']} entries", "s"),
    ):
        amount = found[name]
        assert isinstance(amount, int | float)
        bench.value(words, [amount], unit)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=100_000)
    chosen = parser.parse_args()
    print(json.dumps(measure(chosen.records, chosen.entries), indent=2))


if __name__ == "__main__":
    main()
