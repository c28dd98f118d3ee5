"""What a decoded token costs beside the model: engine loop, text, events, HTTP. On a model so small that it hardly counts."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.harness import Bench, Skipped
from benchmarks.lab import load
from benchmarks.servers import Daemon, Peer, Server
from benchmarks.throughput import at_once
from mlxcel.core.tokens import from_ids
from mlxcel.ports import SamplingParams

TITLE = "The way of a token"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def run(bench: Bench) -> None:
    """Decode on the bare engine, through the daemon, and through mlx_lm.server; with one client and with several."""
    model = small_model(bench.need_model(), bench.folder / "small")
    tokens, clients = bench.size(400, 20), bench.size(4, 2)
    rounds = bench.size(5, 1)
    bare = [_bare(model, bench.folder, 1, tokens) for _ in range(rounds)]
    bare_many = [_bare(model, bench.folder, clients, tokens) for _ in range(rounds)]
    with Daemon(model, bench.folder / "data") as daemon, Peer(model, bench.folder / "peer.log") as peer:
        one, many, theirs, theirs_many = [], [], [], []
        _through(daemon, 1, 8), _through(peer, 1, 8)
        for turn in range(rounds):
            one.append(_through(daemon, 1, tokens, turn))
            theirs.append(_through(peer, 1, tokens, turn))
            many.append(_through(daemon, clients, tokens, turn))
            theirs_many.append(_through(peer, clients, tokens, turn))
        daemon.stop()
    bench.value("a token on the bare engine, one row", bare)
    bench.value(f"a step of the bare engine, {clients} rows", bare_many)
    bench.value("a token through the daemon, one client", one)
    bench.value(f"a step through the daemon, {clients} clients", many)
    bench.value("a token through mlx_lm.server, one client", theirs)
    bench.value(f"a step through mlx_lm.server, {clients} clients", theirs_many)
    bench.compare("one client: daemon / mlx_lm.server", theirs, one, at_most=1.0)
    bench.compare(f"{clients} clients: daemon / mlx_lm.server", theirs_many, many, at_most=1.0)
    bench.compare("one client: daemon / bare engine", bare, one)


def small_model(like: Path, target: Path) -> Path:
    """Write a one-layer model with the tokenizer of another. Raises Skipped when that has no tokenizer files."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    if not (like / TOKENIZER[0]).exists():
        raise Skipped(f"{like.name} has no {TOKENIZER[0]}")
    stated = json.loads((like / "config.json").read_text())
    config: dict[str, Any] = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "vocab_size": min(stated["vocab_size"], 4096), "max_position_embeddings": 4096,
    }  # fmt: skip
    mx.random.seed(1)
    made = Model(ModelArgs.from_dict(config))
    target.mkdir(parents=True)
    mx.save_safetensors(str(target / "model.safetensors"), dict(tree_flatten(made.parameters())))
    (target / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        if (like / name).exists():
            shutil.copy(like / name, target / name)
    return target


def _bare(model: Path, folder: Path, rows: int, tokens: int) -> float:
    """Return seconds a step of the engine alone."""
    engine = load(model, folder)
    for row in range(rows):
        prompt = from_ids(workloads.ids(f"bare-{row}", 32, 4000))
        cache = engine.new_cache()
        engine.prefill(cache, prompt[:-4])
        engine.start_row(cache, 7, prompt[:-4], SamplingParams(logit_bias={0: -100.0, 2: -100.0}), tokens + 16)
    for _ in range(8):
        engine.decode_step()
    started = time.perf_counter()
    for _ in range(tokens):
        engine.decode_step()
    return (time.perf_counter() - started) / tokens


def _through(server: Server, clients: int, tokens: int, turn: int = 0) -> float:
    """Return seconds a step as clients see it: from first to last token of answers of that length."""
    prompts = [workloads.words(f"{turn}-{n}", 12) for n in range(clients)]
    took, timings = at_once(server, prompts, clients, tokens)
    decoded = max(t.completion_tokens for t in timings)
    first = min(t.ttft_s for t in timings)
    return (took - first) / max(1, decoded - 1)
