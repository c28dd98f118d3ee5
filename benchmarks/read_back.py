"""The bare cost of a disk hit: a fresh process reads, checks, decodes and copies one prompt's pieces, and does nothing else.

A process of its own, with the model loaded, is what a restarted daemon is: its memory is new to it, too. Prints seconds as
JSON, the first reading first.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.lab import load
from benchmarks.pages import touch
from benchmarks.result import ROOT
from mlxcel.core.match import match_prefix
from mlxcel.core.tokens import from_ids
from mlxcel.native import environment


def bare_reading(model: Path, data_dir: Path, prompt: list[int]) -> list[float]:
    """Return seconds of the first reading in a fresh process, and of two more."""
    command = [sys.executable, "-m", "benchmarks.read_back", str(model), str(data_dir)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), input=json.dumps(prompt), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"reading back failed:\n{done.stderr[-2000:]}")
    return [float(x) for x in json.loads(done.stdout.splitlines()[-1])]


def read_back(engine: Any, data_dir: Path, prompt: list[int], rounds: int) -> list[float]:
    """Return seconds from keys to a live cache of the prompt's pieces, on one thread; the log tells which they are."""
    from mlxcel.service.recover import fold_log
    from storage.event_log.recovery import open_log
    from storage.lmdb_tier.tier import LmdbTier

    opened = open_log(data_dir / "log")
    state = fold_log(opened.checkpoint, opened.tail).state
    opened.writer.close()
    found = match_prefix(state, state.namespaces[next(iter(state.namespaces))], from_ids(prompt))
    assert found.length >= len(prompt) - 16, f"{found.length} of {len(prompt)} tokens are known"
    nodes = [*found.path, *([state.nodes[found.partial]] if found.partial else [])]
    blobs = {node.blob: state.blobs[node.blob].key for node in nodes}
    tier, samples = LmdbTier.open(data_dir / "kv"), []
    for _ in range(rounds):
        touch()
        started = time.perf_counter()
        pieces = {blob: engine.piece_from_parts(tier.read(key)) for blob, key in blobs.items()}
        runs = []
        for node in nodes:
            used = min(node.end, found.length) - node.start
            runs.append((pieces[node.blob], node.row, node.row + used))
        engine.assemble(runs, None, len(prompt) + 256)
        samples.append(time.perf_counter() - started)
    tier.close()
    return samples


def main(arguments: list[str]) -> int:
    """Read a prompt from standard input and measure."""
    prompt = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as scratch:
        engine = load(Path(arguments[0]), Path(scratch))
        print(json.dumps(read_back(engine, Path(arguments[1]), prompt, 3)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
