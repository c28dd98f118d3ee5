"""Where a prompt's state is captured, and under which name. For models whose state can't be cut by tokens.

Origins: `system`, the end of what many sessions share (system prompt, tools, what a client marked), kept for all of
them; `boundary`, where the history ends and the new messages begin; `interval`, further points to which a rewritten
tail can fall back; `completion`, the end of the answer, which needs no plan.
"""

from collections.abc import Sequence

SYSTEM, BOUNDARY, INTERVAL, COMPLETION = "system", "boundary", "interval", "completion"

LONG_PROMPT_TOKENS = 4096
NEAREST_TOKENS = 1024  # distance of the last interval point from the prompt's end; the next is four times as far
STEP = 4


def plan_captures(
    total: int, boundaries: Sequence[int], shared: Sequence[int], chunk_tokens: int, least_tokens: int
) -> dict[int, str]:
    """Return position -> origin, all strictly inside a prompt of `total` tokens and none before `least_tokens`.

    `boundaries`: all planned positions; `shared`: those of them that sessions have in common. Of the others the first
    ends the history, later ones lie among the new messages. A prompt without any is captured right before its last
    token, where the same prompt would start again. Interval points of long prompts lie on the grid of prefill chunks,
    so they split nothing.
    """
    inside = sorted({at for at in boundaries if 0 < at < total}) or [total - 1]
    own = [at for at in inside if at not in shared]
    points = {at: SYSTEM if at in shared else INTERVAL for at in inside}
    if own:
        points[own[0]] = BOUNDARY
    distance = NEAREST_TOKENS
    while total >= LONG_PROMPT_TOKENS and distance < total:
        at = (total - distance) // chunk_tokens * chunk_tokens
        if at > 0:
            points.setdefault(at, INTERVAL)
        distance *= STEP
    return {at: points[at] for at in sorted(points) if at >= max(1, least_tokens)}
