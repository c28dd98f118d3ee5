"""What a day of agent turns writes to disk for each byte of KV that it adds."""

import random
from pathlib import Path

from benchmarks import workloads
from benchmarks.disk_lab import DiskLab
from benchmarks.harness import Bench

TITLE = "Bytes written per byte stored, over a day of agent turns"
KV_BYTES = 2048
AGENTS = 12
MOST = 1.7
TURN_TOKENS = (100, 500)


def run(bench: Bench) -> None:
    """Let agents take turns: each turn sends the history and 100 to 500 tokens more, a third of them the answer."""
    turns = bench.size(1500, 150)
    lab = DiskLab(bench.folder, KV_BYTES)
    before = bytes_given_to_writes()
    new_tokens = a_day(lab, turns, bench.seed)
    lab.settle()
    figures = lab.gauges()
    given = bytes_given_to_writes() - before
    live, written = figures["disk_live_bytes"], figures["disk_bytes_written"]
    log_bytes = sum(file.stat().st_size for file in (bench.folder / "log").iterdir())
    bench.value("turns", [turns], "", better="higher")
    bench.value("KV added, raw", [new_tokens * KV_BYTES], "B")
    bench.value("held at the end", [live], "B")
    bench.value("written to the store, by the gauge", [written], "B")
    assert figures["disk_writes_dropped"] == figures["disk_writes_failed"] == 0
    bench.value("log at the end", [log_bytes], "B")
    bench.value("file at the end / held", [figures["disk_file_bytes"] / live], "")
    bench.ratio("written to the store / held at the end", written, live, at_most=MOST)
    if given:
        bench.ratio("written by the process, log and all / held at the end", given, live, at_most=MOST)
    lab.close()


def a_day(lab: DiskLab, turns: int, seed: int) -> int:
    """Play the turns; returns how many tokens were new. A conversation that grows long is begun anew."""
    rng = random.Random(seed)
    head = workloads.ids("agent-head", 1500)
    histories = [list(head) for _ in range(AGENTS)]
    new = len(head)
    for number in range(turns):
        agent = rng.randrange(AGENTS)
        if len(histories[agent]) > 12_000:
            histories[agent] = list(head)
        added = rng.randint(*TURN_TOKENS)
        fresh = workloads.ids(f"turn-{seed}-{number}", added)
        prompt, answer = histories[agent] + fresh[: -(added // 3)], fresh[-(added // 3) :]
        lab.turn(prompt, answer, session=f"agent-{agent}")
        histories[agent] = prompt + answer
        new += added
    return new


def bytes_given_to_writes() -> int:
    """Return how many bytes this process has handed to write calls, where the kernel counts that (Linux), else 0."""
    file = Path("/proc/self/io")
    if not file.exists():
        return 0
    lines = dict(line.split(": ") for line in file.read_text().splitlines())
    return int(lines["wchar"])
