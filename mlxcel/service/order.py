"""Which waiting request goes next, and which has run out of time. Pure: no clock, no state of its own."""

from collections.abc import Callable, Sequence

import msgspec

AGE_LIMIT_S = 10.0


class Waiting(msgspec.Struct, frozen=True):
    """One waiting request. `waited_s`: since it came; the sequence they stand in is the order of arrival."""

    id: str
    waited_s: float


def next_waiting(
    waiting: Sequence[Waiting],
    cached_tokens: Callable[[str], int],
    fits: Callable[[str], bool],
    age_limit_s: float = AGE_LIMIT_S,
) -> str | None:
    """Return who goes next: the longest cached prefix, the earliest of equals; None when nobody fits.

    Whoever has waited `age_limit_s` goes before all that came later, and then nobody overtakes it while room for it is made:
    none starves. `cached_tokens` is asked only where there is a choice.
    """
    if not waiting:
        return None
    if waiting[0].waited_s >= age_limit_s:
        return waiting[0].id if fits(waiting[0].id) else None
    fitting = [request.id for request in waiting if fits(request.id)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    return max(fitting, key=cached_tokens)  # max keeps the first of equals


def out_of_time(age_s: float, decoding_s: float, timeout_s: float, decode_timeout_s: float) -> str:
    """Return why a request must end now, "" if it need not. Ages in seconds; a limit of 0 is none.

    `age_s`: since it came, until its first token; `decoding_s`: since its first token.
    """
    if timeout_s and age_s >= timeout_s:
        return f"no token came within {timeout_s:g} seconds"
    if decode_timeout_s and decoding_s >= decode_timeout_s:
        return f"the answer was not done within {decode_timeout_s:g} seconds of its first token"
    return ""
