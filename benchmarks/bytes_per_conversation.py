"""Bytes that conversations hold in memory and on disk, and bytes written for them; the codec's ratio as bf16 and as kept."""

from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.lab import load
from benchmarks.result import ROOT
from benchmarks.servers import Daemon, vocabulary
from mlxcel.core.tokens import from_ids

TITLE = "Bytes of a conversation"


def run(bench: Bench) -> None:
    """Hold some conversations with one system prompt and count; then encode real KV of text as bf16."""
    model = bench.need_model()
    users, turns, system, turn, answer = (3, 3, 256, 48, 16) if not bench.quick else (2, 2, 64, 16, 8)
    told = workloads.conversations(bench.seed, users, turns, system, turn, answer, vocabulary(model))
    data = bench.folder / "data"
    with Daemon(model, data) as daemon:
        client = daemon.client()
        for prompts in zip(*told, strict=True):
            for prompt in prompts:
                client.complete(prompt, 1)
        client.post("/admin/flush")
        stats = client.get("/v1/cache/stats")
        daemon.stop()
    engine = load(model, bench.folder)
    per_token = engine.facts.kv_bytes_per_token
    unique = len({tuple(p[: at + 16]) for prompts in told for p in prompts for at in range(0, len(p) - 15, 16)}) * 16
    once_each, apart = unique * per_token, sum(len(prompts[-1]) for prompts in told) * per_token
    held, stored = find(stats, "memory_bytes", "bytes"), find(stats, "disk_bytes")
    on_disk = sum(path.stat().st_blocks * 512 for path in (data / "kv").rglob("*") if path.is_file())
    logged = sum(path.stat().st_size for path in (data / "log").rglob("*") if path.is_file())
    bench.value("raw bytes of one copy of each block", [once_each], "B")
    bench.value("raw bytes were each conversation kept by itself", [apart], "B")
    bench.value("held in memory", [held], "B")
    bench.value("stored on disk", [stored], "B")
    bench.value("file of the disk tier", [on_disk], "B")
    bench.value("event log", [logged], "B")
    bench.ratio("held in memory / one copy of each block", held, once_each)
    bench.ratio("stored on disk / one copy of each block, as this model keeps it", stored, once_each,
                note=f"KV here is {engine.facts.dtype}")  # fmt: skip
    _as_bf16(bench, engine, model)


def find(stats: Any, *names: str) -> float:
    """Return the first figure of that name, wherever it stands in the answer."""
    for name in names:
        waiting = [stats]
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, dict):
                if isinstance(node.get(name), int | float):
                    return float(node[name])
                waiting += list(node.values())
    raise KeyError(f"no {' or '.join(names)} in {str(stats)[:400]}")


def _as_bf16(bench: Bench, engine: Any, model: Path) -> None:
    """Encode KV of real text, cast to bf16, as the disk tier does."""
    import mlx.core as mx
    from transformers import AutoTokenizer

    from mlxcel.engine.parts import piece_parts
    from mlxcel.engine.pieces import Piece
    from storage.codec.piece import encode

    text = (ROOT / "LICENSE").read_text()
    count = bench.size(1024, 256)
    tokens = AutoTokenizer.from_pretrained(str(model)).encode(text)[:count]
    cache = engine.new_cache()
    for at in range(0, len(tokens), 256):
        engine.prefill(cache, from_ids(tokens[at : at + 256]))
    raw = stored = 0
    for at in range(0, len(tokens) - 255, 256):
        piece = engine.copy_rows(cache, at, at + 256)
        rows = tuple(array.astype(mx.bfloat16) for array in piece.rows)
        mx.eval(rows)
        parts = piece_parts(Piece(at, at + 256, rows))
        raw += sum(len(part.data) for part in parts)
        stored += len(encode(bytes(32), parts).data)
    bench.ratio("stored / raw, real text as bf16", stored, raw, at_most=0.70)
