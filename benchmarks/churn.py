"""How large the store's file becomes when three times its capacity has passed through it."""

import random

from benchmarks import workloads
from benchmarks.disk_lab import DiskLab
from benchmarks.harness import Bench

TITLE = "File size after turning over three times the capacity"
TURNS_OVER = 3
MOST = 1.2


def run(bench: Bench) -> None:
    """Write prompts of all lengths until the capacity has been written four times: filled once, turned over three times."""
    capacity, kv_bytes = bench.size(256 << 20, 32 << 20), bench.size(2048, 256)
    lab = DiskLab(bench.folder, kv_bytes, memory_bytes=capacity // 4, disk_bytes=capacity)
    _, highest = turn_over(lab, capacity, bench.seed)
    figures = lab.gauges()
    bench.value("capacity", [capacity], "B")
    bench.value("held", [figures["disk_live_bytes"]], "B")
    bench.value("file", [figures["disk_file_bytes"]], "B")
    bench.value("worst file / held once full", [highest], "")
    bench.ratio("file / held", figures["disk_file_bytes"], figures["disk_live_bytes"], at_most=MOST)
    lab.close()


def turn_over(lab: DiskLab, capacity: int, seed: int) -> tuple[float, float]:
    """Play prompts of 50 to 4000 tokens, some of them continued; returns file / live at the end and at its worst."""
    rng = random.Random(seed)
    recent: list[list[int]] = []
    number, worst = 0, 0.0
    while lab.gauges()["disk_bytes_written"] < (TURNS_OVER + 1) * capacity:
        number += 1
        base = rng.choice(recent) if recent and rng.random() < 0.4 else []
        prompt = base + workloads.ids(f"churn-{seed}-{number}", int(50 * 80 ** rng.random()))
        lab.turn(prompt, workloads.ids(f"said-{seed}-{number}", 20))
        recent = [*recent[-7:], prompt[:6000]]
        if number % 20 == 0:
            lab.settle()
            figures = lab.gauges()
            if figures["disk_live_bytes"] > 0.9 * capacity:
                worst = max(worst, figures["disk_file_bytes"] / figures["disk_live_bytes"])
    lab.settle()
    figures = lab.gauges()
    return figures["disk_file_bytes"] / figures["disk_live_bytes"], worst
