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
    """Ask both servers the same chat requests, in turn, and again after each was restarted."""
    model = bench.need_model()
    documents = [workloads.words(f"{bench.seed}-{n}", bench.size(400, 60)) for n in range(bench.size(2, 1))]
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    again: dict[str, list[float]] = {}
    data = bench.folder / "data"
    for restarted in (False, True):
        with Daemon(model, data) as daemon, Peer(model, bench.folder / "peer.log") as peer:
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
        bench.value(f"mlx_lm.server, {case}", samples)
        bench.value(f"mlxcel, {case}", ours[case])
        bench.compare(f"{case}: ours / theirs", samples, ours[case], again.get(case, ()), at_most=1.0)
    _exact(bench, model, documents[0])


def _exact(bench: Bench, model: Path, document: str) -> None:
    """The same prompt again, with reuse to the token instead of to the block of 16 tokens."""
    case = "the same again"
    with (
        Daemon(model, bench.folder / "exact", "--apc-block-size", "1") as daemon,
        Peer(model, bench.folder / "peer.log") as peer,
    ):
        for server in (daemon, peer):
            _chat(server, case, document)
        bench.pair(
            f"{case}, blocks of one token: ours / theirs",
            a=lambda: _chat(peer, case, document).ttft_s,
            b=lambda: _chat(daemon, case, document).ttft_s,
            rounds=bench.size(5, 1),
            at_most=1.0,
            names=("mlx_lm.server", "mlxcel, blocks of one token"),
        )
        daemon.stop()


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
