"""What clients send: conversations that grow, fork, are edited, cut short, sent again, by the same or another tenant."""

import dataclasses
import random
from typing import Any

from mlxcel.core import tokens as token_bytes
from mlxcel.ports import CacheOptions, CacheScope, Delta, Failed, Finished, GenerateRequest, SamplingParams
from tests.equality.models import VOCAB

LONGEST = 150  # tokens of a prompt
KINDS = ("new", "turn", "turn", "turn", "fork", "fork", "edit", "retry", "trim", "other salt")
OPTIONS = (*[CacheOptions()] * 10, CacheOptions(read=False), CacheOptions(store=False))


@dataclasses.dataclass
class Talk:
    """A conversation as a client sends it. `system`, `history`: where its system prompt and its past end."""

    ids: list[int]
    session: str
    salt: str = ""
    system: int = 0
    history: int = 0


@dataclasses.dataclass
class Asked:
    """A request on its way. `patience`: steps after which its client leaves, -1 for never. `certain`: with what the next
    turn begins after the answer, whatever its user says."""

    kind: str
    talk: Talk
    prompt: tuple[int, ...]
    certain: tuple[int, ...]
    patience: int
    request: GenerateRequest
    items: list[Any] = dataclasses.field(default_factory=list)

    def over(self) -> bool:
        return bool(self.items) and isinstance(self.items[-1], (Finished, Failed))

    def healthy(self) -> bool:
        return isinstance(self.items[-1], Finished)

    def next_turn(self) -> tuple[int, ...]:
        answer = [token for item in self.items if isinstance(item, Delta) for token in item.tokens]
        return (*self.prompt, *answer, *self.certain)


class Clients:
    """Draws requests; `sent` counts them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sent = 0
        self.systems = [self._ids(rng.choice((16, 20, 33, 48))) for _ in range(2)]
        self.talks: list[Talk] = []

    def draw(self, number: int) -> list[Asked]:
        """Return so many requests that come together; often they begin alike."""
        rng = self.rng
        drawn = [self._draw() for _ in range(number)]
        if number > 1 and rng.random() < 0.6:
            head = drawn[0][1].ids[: rng.randint(1, len(drawn[0][1].ids))]
            for _, talk in drawn[1:]:
                talk.ids = [*head, *self._ids(rng.randint(1, 24))][:LONGEST]
        return [self._ask(kind, talk) for kind, talk in drawn]

    def heard(self, said: Asked) -> None:
        """A request is over: most clients go on from its answer."""
        if said.healthy() and self.rng.random() < 0.8:
            said.talk.ids = list(said.next_turn())

    def _draw(self) -> tuple[str, Talk]:
        """Choose what a client does, and the conversation that it sends."""
        rng = self.rng
        kind = rng.choice(KINDS) if self.talks else "new"
        if kind == "new":
            system = rng.choice(self.systems)
            talk = Talk([*system, *self._ids(rng.randint(1, 40))], self._session(), system=len(system))
            self.talks.append(talk)
            return kind, talk
        talk = rng.choice(self.talks[-4:])
        ids, at = list(talk.ids), rng.randrange(len(talk.ids))
        if kind == "turn" and len(ids) <= LONGEST - 30:
            talk.ids, talk.history = [*ids, *self._ids(rng.randint(1, 24))], len(ids)
        if kind in ("turn", "retry"):
            return kind, talk
        if kind == "other salt":
            return kind, dataclasses.replace(talk, ids=ids, salt="another tenant")
        if kind == "edit":
            ids[at] = (ids[at] - 3 + rng.randint(1, 50)) % (VOCAB - 3) + 3
        else:
            ids = [*ids[: at + 1], *(self._ids(rng.randint(1, 30)) if kind == "fork" else [])]
        forked = dataclasses.replace(talk, ids=ids[:LONGEST], session=rng.choice((talk.session, self._session())))
        if rng.random() < 0.6:
            self.talks.append(forked)
        return kind, forked

    def _ask(self, kind: str, talk: Talk) -> Asked:
        rng = self.rng
        self.sent += 1
        places = self._places(talk)
        request = GenerateRequest(
            request_id=f"r{self.sent}",
            tokens=token_bytes.from_ids(talk.ids),
            params=SamplingParams(temperature=rng.choice((0.0, 1.0)), seed=rng.randrange(1 << 30)),
            max_tokens=rng.choice((1, 1, 2, 2, 3, 5, 14)),
            scope=CacheScope(session_key=talk.session, tenant_salt=talk.salt),
            options=rng.choice(OPTIONS),
            boundaries=tuple(places),
            shared=tuple(places[:1]),
            next_turn=lambda text: token_bytes.from_ids(said.next_turn()),
        )
        patience = rng.randint(1, 12) if rng.random() < 0.12 else -1
        said = Asked(kind, talk, tuple(talk.ids), tuple(self._ids(rng.randint(1, 6))), patience, request)
        return said

    def _places(self, talk: Talk) -> list[int]:
        """Return where prefill is to be split: where such a conversation has its joints, or anywhere."""
        if self.rng.random() < 0.2:
            return sorted(self.rng.randint(1, len(talk.ids)) for _ in range(self.rng.randint(1, 2)))
        joints = {talk.system, talk.history} if self.rng.random() < 0.8 else set()
        return sorted(at for at in joints if 0 < at < len(talk.ids))

    def _ids(self, length: int) -> list[int]:
        return [self.rng.randrange(3, VOCAB) for _ in range(length)]

    def _session(self) -> str:
        return f"s{self.rng.randrange(6)}"
