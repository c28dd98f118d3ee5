"""Beside `mlx_lm.server`: same model, same prompts, same client, in one run. Cold, again, an extended turn, restarted."""

from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.client import Timing
from benchmarks.harness import Bench
from benchmarks.pages import touch
from benchmarks.servers import Daemon, Peer, Server

TITLE = "Beside mlx_lm.server"
CASES = ("cold", "the same again", "an extended turn", "another question to the same document", "half the document")


def run(bench: Bench) -> None:
    """Ask both servers the same chat requests, in turn: with our blocks of 16 tokens and, beside it, of one."""
    model = bench.need_model()
    documents = [workloads.words(f"{bench.seed}-{n}", bench.size(400, 60)) for n in range(bench.size(3, 1))]
    _side_by_side(bench, model, documents, "", (False, True))
    _side_by_side(bench, model, documents, ", blocks of one token", (False,), "--apc-block-size", "1")


def _side_by_side(
    bench: Bench, model: Path, documents: list[str], how: str, restarts: tuple[bool, ...], *flags: str
) -> None:
    """Ask each case once for each document, and again after both servers were restarted if so wanted."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    again: dict[str, list[float]] = {}
    data = bench.folder / f"data{how.replace(' ', '-')}"
    for restarted in restarts:
        with Daemon(model, data, *flags) as daemon, Peer(model, bench.folder / "peer.log") as peer:
            pair = ((daemon, ours), (peer, theirs))
            for server, _ in pair:
                server.client().chat([{"role": "user", "content": "Hello"}], 1)
            for number, document in enumerate(documents):
                for case in CASES:
                    _ask(bench, pair[:: 1 - 2 * (number % 2)], case, document, restarted)
                if not restarted:
                    # Ours a second time for the noise: only the repeat can be measured twice.
                    for _ in range(3):
                        again.setdefault("the same again", []).append(_chat(daemon, "the same again", document).ttft_s)
            daemon.stop()
    for case, samples in theirs.items():
        bench.value(f"mlx_lm.server, {case}{how}", samples)
        bench.value(f"mlxcel, {case}{how}", ours[case])
        bench.compare(f"{case}{how}: ours / theirs", samples, ours[case], again.get(case, ()), at_most=1.0)


def _ask(
    bench: Bench, pair: tuple[tuple[Server, dict[str, list[float]]], ...], case: str, document: str, restarted: bool
) -> None:
    name = f"{case}, restarted" if restarted else case
    for server, into in pair:
        timing = _chat(server, case, document)
        into.setdefault(name, []).append(timing.ttft_s)
        who = type(server).__name__
        bench.say(f"{who}, {name}: {timing.ttft_s:.3f} s, {timing.cached_tokens} of {timing.prompt_tokens} cached")


def _chat(server: Server, case: str, document: str) -> Timing:
    touch()
    return server.client().chat(messages(case, document), 8)


def messages(case: str, document: str) -> list[dict[str, str]]:
    """Return the chat of one case."""
    first: list[dict[str, Any]] = [
        {"role": "system", "content": "You answer in few words. Read this:\n" + document},
        {"role": "user", "content": "What is it about?"},
    ]
    if case == "an extended turn":
        said = {"role": "assistant", "content": "It is about words."}
        return [*first, said, {"role": "user", "content": "And what else is in it?"}]
    if case == "another question to the same document":
        return [first[0], {"role": "user", "content": "Who would read such a text?"}]
    if case == "half the document":
        half = document[: len(document) // 2]
        return [{**first[0], "content": "You answer in few words. Read this:\n" + half}, first[1]]
    return first
