"""Which earlier request a prompt resembles most, and where the two part and meet again."""

import zlib
from collections import Counter

import msgspec

from mlxcel.core.tokens import common_tokens
from ops.diagnose.asked import Asked

SHINGLE_TOKENS = 12
SAMPLE = 4  # one shingle in so many is kept, chosen by its own content
REMEMBERED = 6  # latest requests remembered per shingle
MOST_EDITS = 24
_WIDTH = SHINGLE_TOKENS * 4


class Meeting(msgspec.Struct, frozen=True):
    """How a prompt and an earlier sequence compare. `prefix`: tokens alike from the start. Then the first difference:
    `ours` and `theirs` tokens long, after which `meets` tokens are alike; `aligned`: tokens alike in all, in one order;
    `alike`: prompt tokens that the earlier one holds anywhere."""

    prefix: int
    ours: int = 0
    theirs: int = 0
    meets: int = 0
    aligned: int = 0
    alike: int = 0

    @property
    def edited(self) -> bool:
        """True when they part and meet again."""
        return self.meets > 0


class Resemblance:
    """Remembers sequences by samples of their content; finds the earlier one that shares most."""

    def __init__(self) -> None:
        self._latest: dict[int, list[int]] = {}

    def closest(self, tokens: bytes) -> list[int]:
        """Return numbers of earlier requests that share content, those that share most first, then the latest."""
        votes: Counter[int] = Counter()
        for sample in samples(tokens):
            votes.update(self._latest.get(sample, ()))
        ranked = sorted(votes.items(), key=lambda vote: (-vote[1], -vote[0]))
        return [number for number, _ in ranked[:3]]

    def remember(self, number: int, tokens: bytes) -> None:
        """File a sequence under its samples."""
        for sample in samples(tokens):
            filed = self._latest.setdefault(sample, [])
            filed.append(number)
            if len(filed) > REMEMBERED:
                del filed[0]


def samples(tokens: bytes) -> set[int]:
    """Return content-chosen checksums of runs of tokens: equal content gives equal samples wherever it stands."""
    found = (zlib.crc32(tokens[at : at + _WIDTH]) for at in range(0, len(tokens) - _WIDTH + 1, 4))
    return {number for number in found if number % SAMPLE == 0}


def compare(ours: bytes, theirs: bytes) -> Meeting:
    """Find the first difference and all that is alike after it."""
    prefix = common_tokens(ours, theirs)
    if min(len(ours), len(theirs)) // 4 - prefix < SHINGLE_TOKENS:
        return Meeting(prefix, aligned=prefix, alike=prefix)
    at, their_at = prefix * 4, prefix * 4
    places = _places(theirs)
    alike = prefix + _covered(ours, prefix, places)
    first: tuple[int, int, int] | None = None
    aligned = prefix
    for _ in range(MOST_EDITS):
        found = _next_meeting(ours, at, their_at, places)
        if found is None:
            break
        mine, other = _back(ours, theirs, found, at, their_at)
        meets = common_tokens(ours[mine:], theirs[other:])
        if first is None:
            first = ((mine - at) // 4, (other - their_at) // 4, meets)
        aligned += meets
        at, their_at = mine + meets * 4, other + meets * 4
    return Meeting(prefix, *(first or (0, 0, 0)), aligned=aligned, alike=max(alike, aligned))


def _covered(ours: bytes, start: int, places: dict[bytes, list[int]]) -> int:
    """Return how many tokens from `start` on lie in a run that the other sequence has too, wherever."""
    covered, until = 0, start
    for at in range(start, len(ours) // 4 - SHINGLE_TOKENS + 1):
        if ours[at * 4 : at * 4 + _WIDTH] in places:
            end = at + SHINGLE_TOKENS
            covered += end - max(at, until)
            until = end
    return covered


def _places(theirs: bytes) -> dict[bytes, list[int]]:
    places: dict[bytes, list[int]] = {}
    for at in range(0, len(theirs) - _WIDTH + 1, 4):
        places.setdefault(theirs[at : at + _WIDTH], []).append(at)
    return places


def _next_meeting(ours: bytes, at: int, their_at: int, places: dict[bytes, list[int]]) -> tuple[int, int] | None:
    for mine in range(at, len(ours) - _WIDTH + 1, 4):
        for other in places.get(ours[mine : mine + _WIDTH], ()):
            if other >= their_at:
                return mine, other
    return None


def _back(ours: bytes, theirs: bytes, found: tuple[int, int], at: int, their_at: int) -> tuple[int, int]:
    """Widen a meeting to its left as far as the two agree."""
    mine, other = found
    while mine > at and other > their_at and ours[mine - 4 : mine] == theirs[other - 4 : other]:
        mine, other = mine - 4, other - 4
    return mine, other


class Pair(msgspec.Struct, frozen=True):
    """A request with the earlier one that it resembles most. `lost`: tokens alike beyond what was reused."""

    ours: Asked
    theirs: Asked
    meeting: Meeting
    lost: int
    first_length: int  # prompt tokens of the conversation's first request


def _best(one: Asked, rivals: list[int], asked: list[Asked], before: int | None) -> tuple[int, Meeting] | None:
    """Return the rival that shares most, and how. One that the prompt goes on from is taken without looking further."""
    likeliest = {before, *rivals[:1]}
    for rival in rivals:
        whole = asked[rival].whole
        if rival in likeliest and 0 < len(whole) <= len(one.tokens) and one.tokens.startswith(whole):
            prefix = len(whole) // 4
            return rival, Meeting(prefix, aligned=prefix, alike=prefix)
    met = [(rival, compare(one.tokens, asked[rival].whole)) for rival in rivals]
    return max(met, key=lambda pair: (pair[1].alike, pair[0]), default=None)


def pair_up(asked: list[Asked]) -> list[Pair]:
    """Pair every request with its closest earlier one, where there is any."""
    memory = Resemblance()
    first_lengths: list[int] = []
    last_in_session: dict[str, int] = {}
    pairs: list[Pair] = []
    for number, one in enumerate(asked):
        rivals = memory.closest(one.tokens)
        before = last_in_session.get(one.session)
        if before is not None and one.session.strip("_") != "mlxcel_anon" and before not in rivals:
            rivals.append(before)
        best = _best(one, rivals, asked, before)
        first_length = one.length
        if best is not None and best[1].alike:
            rival, meeting = best
            theirs = asked[rival]
            if meeting.aligned * 2 >= theirs.length or theirs.session == one.session:
                first_length = min(first_lengths[rival], one.length)
            pairs.append(Pair(one, theirs, meeting, max(0, meeting.aligned - one.reused), first_length))
        first_lengths.append(first_length)
        last_in_session[one.session] = number
        memory.remember(number, one.whole)
    return pairs
