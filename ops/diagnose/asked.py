"""What was asked and what came of it: the log as a list of requests."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from ops.replay.source import History
from ops.replay.walk import Moment, moments, open_history


class Asked(msgspec.Struct):
    """One request. `tokens` and `answer` are int32 LE; `reused`: tokens not computed; `reason`: of a miss, or ""."""

    name: str
    at_us: int
    namespace: int
    template_sig: str
    session: str
    tokens: bytes
    reused: int = 0
    known: int = 0
    reason: str = ""
    answer: bytes = b""
    ended: str = ""

    @property
    def length(self) -> int:
        """Prompt tokens."""
        return len(self.tokens) // 4

    @property
    def whole(self) -> bytes:
        """Prompt and answer."""
        return self.tokens + self.answer


class Told(msgspec.Struct):
    """Everything the diagnosis looks at. `evictions`: (tier, reason) -> pieces; `cold`: reason -> requests past the cache."""

    asked: list[Asked] = []
    policy: Policy = Policy()
    namespaces: dict[int, NamespaceKey] = {}
    evictions: Counter[tuple[str, str]] = Counter()
    entry_evictions: Counter[tuple[str, str]] = Counter()
    cold: Counter[str] = Counter()
    left_out: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over all requests."""
        return sum(one.length for one in self.asked)

    @property
    def reused_tokens(self) -> int:
        """Tokens that were not computed."""
        return sum(one.reused for one in self.asked)


def read_told(path: Path, last: int = 0) -> Told:
    """Read a history; keep the `last` requests only (0: all). Raises as `History`."""
    state, rest = open_history(History(path))
    return gather(moments(state, rest), last)


def gather(history: Iterable[Moment], last: int = 0) -> Told:
    """Collect requests from the moments of a history."""
    told = Told(asked=[], namespaces={}, evictions=Counter(), entry_evictions=Counter(), cold=Counter())
    running: dict[str, Asked] = {}
    state = None
    for moment in history:
        state = moment.state
        command = moment.record.command
        if isinstance(command, cmd.AdoptPrefix) and not (command.again or command.background):
            assert isinstance(command.tokens, bytes)
            one = Asked(command.request, command.at_us, command.namespace, command.template_sig, command.session_key,
                        command.tokens)  # fmt: skip
            running[command.request] = one
            told.namespaces[command.namespace] = state.namespaces[command.namespace].key
            told.asked.append(one)
        elif isinstance(command, cmd.DonatePrefix) and command.request in running:
            running[command.request].answer = command.generated
        _note(told, running, moment.record.events)
    if state is not None:
        told.policy = state.policy
    if last and len(told.asked) > last:
        told.left_out = len(told.asked) - last
        told.asked = told.asked[-last:]
    return told


def _note(told: Told, running: dict[str, Asked], events: Iterable[ev.Event]) -> None:
    for event in events:
        one = running.get(getattr(event, "request", ""))
        match event:
            case ev.PieceEvicted():
                told.evictions[event.tier, event.reason] += 1
            case ev.EntryEvicted():
                told.entry_evictions[event.tier, event.reason] += 1
            case ev.RequestServedCold():
                told.cold[event.reason] += 1
            case ev.PrefixAdopted() if one is not None:
                one.reused = one.known = event.length
            case ev.PrefixMissed() if one is not None:
                one.known, one.reason = event.known_tokens, event.reason
            case ev.RestoreFailed() if one is not None:
                one.reused, one.reason = 0, "restore_failed"
            case ev.RequestEnded() if one is not None:
                one.ended = event.outcome
                del running[event.request]
