"""Recorded histories and published traces as loads of synthetic tokens."""

from collections.abc import Iterable
from pathlib import Path

from benchmarks import workloads
from benchmarks.workloads import Arrival
from mlxcel.core import events as ev
from mlxcel.core.tokens import count, to_ids
from mlxcel.core.whatif.blocks import BlockArrival
from ops.replay.mooncake import BLOCK_TOKENS, read_mooncake
from ops.replay.source import History
from ops.replay.walk import moments, open_history

LOG_BLOCK = 16


def read_source(source: str, requests: int, scale: float, vocab: int, seed: int) -> list[Arrival]:
    """Return the first `requests` of a source, times from 0. Raises OSError, and what ops.replay raises for bad files."""
    if source == "chatter":
        return workloads.chatter(seed, requests, rate=1.0, block_tokens=max(1, round(64 * scale)), vocab=vocab)
    path = Path(source)
    if path.suffix == ".jsonl":
        return from_trace(read_mooncake(path), requests, scale, vocab, seed)
    return from_history(path, requests, vocab, seed)


def from_trace(rows: Iterable[BlockArrival], requests: int, scale: float, vocab: int, seed: int) -> list[Arrival]:
    """Return arrivals of a trace: equal block numbers become equal tokens; `scale` shortens blocks and answers."""
    block = max(1, round(BLOCK_TOKENS * scale))
    arrivals: list[Arrival] = []
    for row in rows:
        if len(arrivals) == requests:
            break
        prompt = [token for number in row.blocks for token in workloads.ids(f"{seed}-{number}", block, vocab)]
        length = max(1, round(row.input_tokens * scale))
        answer = max(1, round(row.output_tokens * scale))
        arrivals.append(Arrival(row.at_us / 1e6, prompt[:length] or [workloads.FIRST_ID], answer))
    return from_zero(arrivals)


def from_history(path: Path, requests: int, vocab: int, seed: int) -> list[Arrival]:
    """Return the arrivals of a log with other tokens in place of its own, the same for the same prefix."""
    arrived: dict[str, int] = {}
    arrivals: list[Arrival] = []
    for moment in moments(*open_history(History(path))):
        for event in moment.record.events:
            if isinstance(event, ev.RequestArrived) and len(arrivals) < requests and event.request not in arrived:
                arrived[event.request] = len(arrivals)
                prompt = disguised(to_ids(event.tokens), seed, vocab)
                arrivals.append(Arrival(moment.record.command.at_us / 1e6, prompt, 1))
            elif isinstance(event, ev.TokensGenerated) and event.request in arrived:
                number = arrived.pop(event.request)
                # The last token of an answer is never computed with, so the log does not hold it.
                arrivals[number] = arrivals[number]._replace(answer_tokens=count(event.tokens) + 1)
    return from_zero(arrivals)


def disguised(tokens: list[int], seed: int, vocab: int) -> list[int]:
    """Return other tokens: block for block a function of the block and all before it, so only what was shared stays so."""
    chain, made = seed, []
    for at in range(0, len(tokens), LOG_BLOCK):
        block = tokens[at : at + LOG_BLOCK]
        chain = workloads.chained(chain, block)
        made += workloads.ids(f"{seed}-{chain}", len(block), vocab)
    return made


def from_zero(arrivals: list[Arrival]) -> list[Arrival]:
    """Return the arrivals with the first at second 0."""
    first = arrivals[0].at_s if arrivals else 0.0
    return [arrival._replace(at_s=arrival.at_s - first) for arrival in arrivals]
