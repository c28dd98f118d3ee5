"""Passes of the model over one sequence, and what each of them rests on."""

from dataclasses import dataclass

import numpy as np


class Pass:
    """One run of the model over tokens of one sequence. `before`, `state`: origins of what it attended to.

    Without tokens: it entered the decode lane or left it; both put windows in order of time. With `batch`: all of an answer,
    from the end of the prompt on, that was decoded together with others.
    """

    def __init__(
        self, tokens: tuple[int, ...], before: "Rows", state: "State | None", batch: "Batched | None" = None
    ) -> None:
        self.tokens = tokens
        self.before = before
        self.state = state
        self.start = len(before)
        self.stop = self.start + len(tokens)
        self.batch = batch

    def after(self) -> "Rows":
        """Return the origins of all rows once this pass has run."""
        return (*self.before, *((self, at) for at in range(len(self.tokens))))


Rows = tuple[tuple[Pass, int], ...]  # of each position: the pass, and the token's number in it
State = tuple[Pass, int]  # what can't be cut by rows is as it was after this pass, cut to so many tokens


def cut_state(state: State, length: int) -> State:
    """Return the origin of a state that is cut at `length` tokens: the pass that computed its last row."""
    at = state[0]
    while length <= at.start:
        assert at.state is not None
        at = at.state[0]
    return at, length


@dataclass(frozen=True)
class Joined:
    """A row joins a batch: what its cache rests on, and the prompt's last tokens, which are run then."""

    row: int
    before: Rows
    state: State | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Stepped:
    """All rows of a batch go on by one token: row -> token."""

    tokens: dict[int, int]


@dataclass(frozen=True)
class Left:
    """A row leaves a batch, with its cache or without."""

    row: int
    taken: bool


@dataclass(frozen=True)
class Batched:
    """What happened in the decode lane, from the first row to join it when it was empty until `row` left."""

    events: tuple[Joined | Stepped | Left, ...]
    row: int


@dataclass(frozen=True)
class Started:
    """A prompt whose last token has been run: the pass, its raw logits [vocab], and how many tokens were adopted.

    `beside`: other answers were decoding then.
    """

    last: Pass
    logits: np.ndarray
    adopted: int
    beside: bool

    @property
    def prompt(self) -> tuple[int, ...]:
        """The whole prompt as the passes saw it."""
        return tuple(origin.tokens[at] for origin, at in self.last.after())
