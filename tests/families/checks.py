"""What must hold for every architecture, told as a list of findings (empty: all holds)."""

import dataclasses
import random
from pathlib import Path

from mlxcel.engine.engine import MlxEngine
from mlxcel.families import apc_suits
from tests.families.rig import Answer, Ask, Rig, reference, rig, unsplit

TOLERANCE = 2e-3  # of log-probabilities, float32, between ways of splitting or batching the same computation
PROMPT, ANSWER, TURN = 100, 24, 20
BOUNDARIES = (20, 40, 77)  # of every request of the conversation: pieces are shared, so they must be split alike
LAST = 77
AGAIN = ("turn", "same", "fork 3", "trimmed", "edited")


@dataclasses.dataclass
class Finding:
    """One architecture's row of the table, and what was wrong."""

    name: str
    layers: str
    reuse: str
    refusal: str
    lane: str
    cached: dict[str, int]
    wrong: list[str]
    split_difference: float = 0.0
    answered: tuple[int, ...] = ()
    again: dict[str, int] = dataclasses.field(default_factory=dict)  # tokens cached, by name, when asked last
    blind: list[int] = dataclasses.field(default_factory=list)  # positions of the prompt that make no difference


def tokens(seed: int, length: int) -> tuple[int, ...]:
    """Return seeded token ids, none of them special."""
    source = random.Random(seed)
    return tuple(source.randrange(3, 512) for _ in range(length))


def asks(answered: tuple[int, ...]) -> dict[str, Ask]:
    """Return the requests of one conversation that follow the first: same, next turn, forks, edits, prefixes."""
    prompt = tokens(1, PROMPT)
    turn = (*prompt, *answered, *tokens(2, TURN))
    edited = (*prompt[:50], (prompt[50] + 1) % 500 + 3, *prompt[51:])
    made = {
        "same": Ask(prompt, 24, BOUNDARIES),
        "edited": Ask((*edited, *tokens(3, 8)), 4, BOUNDARIES, session="edited"),
        "trimmed": Ask(prompt[:70], 4, (20, 40, 69), session="trimmed"),
        "trimmed short": Ask(prompt[:37], 4, (20, 36), session="short"),
    }
    for last in (1, 2, 3, 4):
        made[f"fork {last}"] = Ask((*prompt[:-last], *tokens(10 + last, last)), 4, BOUNDARIES, session=f"fork {last}")
    made["turn"] = Ask(turn, 16, (*BOUNDARIES, len(turn) - 1))
    return made


def examine(engine: MlxEngine, data_dir: Path) -> Finding:
    """Run one architecture through memory and batches, on a fresh data directory."""
    facts = engine.facts
    name = Path(facts.path).name
    found = Finding(name, ", ".join(sorted(set(facts.layers))), facts.reuse, facts.reuse_refusal, facts.lane, {}, [])
    with rig(engine, data_dir) as warm:
        first_ask = Ask(tokens(1, PROMPT), ANSWER, BOUNDARIES)
        (first,) = warm.ask(first_ask)
        _expect(found, "first", first.cached == 0, "the first request hit")
        _same(found, "first", first, reference(engine, first_ask))
        found.split_difference = _distance(first.logprobs[0], unsplit(engine, first_ask.ids))
        alike = found.split_difference <= TOLERANCE or facts.reuse == "none"  # then no hit ever splits a prompt
        _expect(found, "unsplit", alike, f"differs by {found.split_difference:.2g}")
        made = asks(first.tokens)
        for name, ask in made.items():
            found.cached[name] = _check(found, warm, name, ask)
        _kept(found, len(first.tokens))
        _context_matters(found, engine, first)
        _batch(found, warm, made)
        again = {name: _check(found, warm, f"{name} again", made[name]) for name in AGAIN}
    found.answered, found.again = first.tokens, again
    return found


def resume(engine: MlxEngine, data_dir: Path, found: Finding) -> None:
    """Ask again what `examine` asked last, after a restart: the same tokens come from the cache, from disk."""
    made = asks(found.answered)
    with rig(engine, data_dir) as restarted:
        for name in AGAIN:
            cached = _check(found, restarted, f"{name} after a restart", made[name])
            before = found.again[name]
            _expect(found, name, cached == before, f"{cached} cached after a restart, {before} before")
        stats = restarted.questions().stats()
        _expect(found, "restart", engine.facts.reuse == "none" or stats["disk_hits"] > 0, "nothing came from disk")


def _check(found: Finding, warm: Rig, name: str, ask: Ask) -> int:
    """An answer equals a run without the cache that is split at the same places, to the bit. Returns tokens cached."""
    (answer,) = warm.ask(ask)
    decoded = (PROMPT, found.cached.get("turn", answer.cached)) if name.startswith("turn") else (0, 0)
    _same(found, name, answer, reference(warm.engine, ask, answer.cached, decoded))
    if warm.engine.facts.reuse == "none":
        _expect(found, name, answer.cached == 0, "cached though reuse is none")
    return answer.cached


def _batch(found: Finding, warm: Rig, made: dict[str, Ask]) -> None:
    """Hits and misses that decode together have the answers they have alone."""
    together = [made["turn"], Ask(tokens(40, 60), 12), made["fork 2"], Ask(tokens(41, 9), 12), made["same"]]
    alone = [warm.ask(dataclasses.replace(ask, cold=True))[0] for ask in together]
    for number, (one, other) in enumerate(zip(alone, warm.ask(*together), strict=True)):
        for step, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
            distance = _distance(a, b)
            _expect(found, f"batch {number}", distance <= TOLERANCE, f"step {step} differs by {distance:.2g}")
            if distance > TOLERANCE or one.tokens[step] != other.tokens[step]:
                break


def _context_matters(found: Finding, engine: MlxEngine, first: Answer) -> None:
    """A model that forgets its prompt would pass every comparison: other prompts must give other answers."""
    prompt = tokens(1, PROMPT)
    for place in (0, 50, PROMPT - 4, PROMPT - 2):
        other = reference(engine, Ask((*prompt[:place], (prompt[place] + 1) % 500 + 3, *prompt[place + 1 :]), 1))
        if _distance(first.logprobs[0], other.logprobs[0]) == 0:
            found.blind.append(place)
    _expect(found, "context", PROMPT - 2 not in found.blind, "the token before the last makes no difference")


def _kept(found: Finding, answered: int) -> None:
    """What should be reusable was reused. Families without block matching adopt whole entries only."""
    if found.reuse == "none" or not apc_suits({"model_type": found.name}):
        return
    whole = found.reuse == "snapshot"
    expected = {
        "same": LAST if whole else 96,
        "turn": PROMPT + answered if whole else 96,
        "fork 1": LAST if whole else 96,
    }
    for name, least in expected.items():
        _expect(found, name, found.cached[name] >= least, f"{found.cached[name]} cached, {least} expected")


def _expect(found: Finding, where: str, holds: bool, message: str) -> None:
    if not holds:
        found.wrong.append(f"{where}: {message}")


def _same(found: Finding, where: str, answer: Answer, expected: Answer) -> None:
    """Compare tokens and every log-probability of every step, bit for bit."""
    if answer.tokens != expected.tokens or answer.logprobs != expected.logprobs:
        pairs = zip(answer.logprobs, expected.logprobs, strict=False)
        step, (a, b) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
        found.wrong.append(f"{where}: step {step} differs by {_distance(a, b):.2g} ({answer.cached} cached)")


def _distance(a: dict[int, float], b: dict[int, float]) -> float:
    return max(abs(a[token] - b[token]) for token in a)
