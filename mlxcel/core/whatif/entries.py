"""The guide's order, whole entries: the entry used least recently leaves, with the blocks that only it uses."""

from collections import OrderedDict

from mlxcel.core.whatif.blocks import BlockTrace
from mlxcel.core.whatif.outcome import Outcome


def simulate_entries(trace: BlockTrace, capacity: int) -> Outcome:
    """Run the trace. An entry is one arrival's prompt; a hit refreshes the entry that last ran through its deepest block."""
    users = [0] * trace.blocks
    via = [-1] * trace.blocks
    entries: OrderedDict[int, tuple[int, ...]] = OrderedDict()
    size = evictions = refused = 0
    hits: list[int] = []
    by_path: dict[int, int] = {}
    for at, arrival in enumerate(trace.arrivals):
        path = arrival.blocks
        found = 0
        for block in path:
            if not users[block]:
                break
            found += 1
        hits.append(found)
        if found and via[path[found - 1]] in entries:
            entries.move_to_end(via[path[found - 1]])
        if len(path) > capacity or not path:
            refused += bool(path)
            continue
        replaced = by_path.get(path[-1], -1)
        for block in path:
            users[block] += 1
            size += users[block] == 1
            via[block] = at
        if replaced in entries:
            size -= _drop(entries.pop(replaced), users)
        entries[at] = path
        by_path[path[-1]] = at
        while size > capacity:
            _, oldest = entries.popitem(last=False)
            gone = _drop(oldest, users)
            size, evictions = size - gone, evictions + gone
    return Outcome("lru", capacity, hits, evictions, refused)


def _drop(path: tuple[int, ...], users: list[int]) -> int:
    gone = 0
    for block in path:
        users[block] -= 1
        gone += not users[block]
    return gone
