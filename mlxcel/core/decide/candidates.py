"""Which stored prefix suits a prompt best: by whole blocks, by whole entries, by captured states, or by the guide's buckets."""

from itertools import islice

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core.deadline import drop_ended, ended, overdue
from mlxcel.core.keys import EMPTY_MEDIA
from mlxcel.core.match import Match
from mlxcel.core.reasons import MissReason
from mlxcel.core.state import STORED, Namespace, Node, State
from mlxcel.core.tokens import TOKEN_BYTES, common_tokens, count

SNAPSHOTS_TRIED = 16  # of those that could be cut, newest first: a decision stays bounded however many there are


class Candidate(msgspec.Struct):
    """A prefix that could be adopted: `nodes` in order (a snapshot last, if any), `length` tokens, `known` tokens in all.

    `entry`: the entry that a bucket lookup found (0: to be found out). `reason`: why there is not more.
    """

    nodes: list[Node]
    length: int
    known: int
    reason: MissReason = MissReason.NO_COMMON_PREFIX
    entry: int = 0


def best_candidate(state: State, namespace: Namespace, found: Match, c: cmd.AdoptPrefix) -> Candidate:
    """Return the longest prefix of the prompt that may be adopted, always at least one token short of all of it."""
    assert isinstance(c.tokens, bytes)
    limit, policy = count(c.tokens) - 1, state.policy
    if namespace.reuse == "snapshot":
        return best_snapshot(state, namespace, found, c.tokens, c.at_us, c if policy.strict_template_bucket else None)
    if policy.strict_template_bucket:
        return _best_in_bucket(state, namespace, found, c, limit)
    if policy.apc_enabled and not whole_entries_only(namespace):
        return _best_blocks(state, namespace, found, c.at_us, limit)
    return _best_whole_entry(state, found, c.at_us, limit)


def whole_entries_only(namespace: Namespace) -> bool:
    """True for prompts with media: what is prefilled after a hit must be text that was appended."""
    return namespace.key.media_digest != EMPTY_MEDIA


def expired(state: State, node: Node, at_us: int) -> bool:
    """True when the node is past its time in every tier that holds it: a sweep would have taken it out."""
    if node.leases or node.pinned or node.keep_until_us > at_us:
        return False
    policy = state.policy
    memory_ttl = policy.snapshot_ttl_us if node.snapshot else policy.ttl_us
    idle_us = at_us - node.last_used_us
    in_memory = node.memory and (not memory_ttl or idle_us < memory_ttl)
    on_disk = node.disk and (not policy.disk_ttl_us or idle_us < policy.disk_ttl_us)
    return not (in_memory or (on_disk and state.blobs[node.blob].disk_state == STORED))


def _why_not(state: State, node: Node, at_us: int) -> MissReason | None:
    if not state.readable(node.blob):
        return MissReason.SPILL_PENDING
    over = expired(state, node, at_us) or (node.snapshot and ended(state, node, at_us))
    return MissReason.EXPIRED if over else None


def _readable_run(state: State, found: Match, at_us: int) -> tuple[list[Node], int, MissReason | None]:
    """Return the leading nodes whose bytes some tier can give, the tokens they cover, and why it stopped early."""
    nodes: list[Node] = []
    why = None
    for node in [*found.path, state.nodes[found.partial]] if found.partial else found.path:
        why = _why_not(state, node, at_us)
        if why:
            break
        nodes.append(node)
    if state.short_lived and drop_ended(state, nodes, at_us):
        why = MissReason.EXPIRED
    if nodes and nodes[-1].id == found.partial:
        return nodes, found.length, why
    return nodes, nodes[-1].end if nodes else 0, why


def _best_blocks(state: State, namespace: Namespace, found: Match, at_us: int, limit: int) -> Candidate:
    nodes, length, stopped = _readable_run(state, found, at_us)
    usable = min(length, limit // namespace.block_size * namespace.block_size)
    while nodes and nodes[-1].start >= usable:
        nodes.pop()
    return Candidate(nodes, usable, found.length, stopped or MissReason.NO_COMMON_PREFIX)


def _best_whole_entry(state: State, found: Match, at_us: int, limit: int) -> Candidate:
    """Without block matching only an entry that is a prefix of the prompt, whole, may be adopted."""
    nodes, _, stopped = _readable_run(state, found, at_us)
    if nodes and nodes[-1].id == found.partial:
        nodes.pop()
    while nodes and all(overdue(state.entries[entry_id], at_us) for entry_id in nodes[-1].anchored):
        nodes.pop()
    if nodes:
        return Candidate(nodes, min(nodes[-1].end, limit), found.length)
    return Candidate([], 0, found.length, stopped or MissReason.NO_COMMON_PREFIX)


def _best_in_bucket(state: State, namespace: Namespace, found: Match, c: cmd.AdoptPrefix, limit: int) -> Candidate:
    """The guide's lookup: entries of the same bucket only; another session's wins only when strictly longer."""
    nodes, length, stopped = _readable_run(state, found, c.at_us)
    covered = {node.id: min(node.end, length) for node in nodes}
    whole = not state.policy.apc_enabled or whole_entries_only(namespace)
    best: dict[bool, tuple[int, int, int]] = {True: (0, 0, 0), False: (0, 0, 0)}
    for entry_id in state.buckets.get((namespace.id, c.template_sig), ()):
        entry = state.entries[entry_id]
        if overdue(entry, c.at_us):
            continue
        at = state.nodes[entry.node]
        while at.parent and at.id not in covered:
            at = state.nodes[at.parent]
        matched = covered.get(at.id, 0)
        if matched and (not whole or matched == entry.length):
            same = entry.session_key == c.session_key
            best[same] = max(best[same], (matched, entry.last_used_us, entry_id))
    matched, _, entry_id = best[False] if best[False][0] > best[True][0] else best[True]
    usable = min(matched, limit if whole else limit // namespace.block_size * namespace.block_size)
    nodes = [node for node in nodes if node.start < usable]
    return Candidate(nodes, usable, found.length, stopped or MissReason.NO_COMMON_PREFIX, entry_id)


def best_snapshot(
    state: State, namespace: Namespace, found: Match, tokens: bytes, at_us: int, only: cmd.AdoptPrefix | None = None
) -> Candidate:
    """A captured state is usable where it was taken: the longest that lies on the prompt, one token short of all. Without
    one, a state that can be cut is, up to where the prompt leaves it.

    `only`: the guide's rule: nothing but snapshots of this request's session and template.
    """
    nodes, length, stopped = _readable_run(state, found, at_us)
    limit = count(tokens) - 1
    whole = [node for node in nodes if node.id != found.partial]
    for depth in range(len(whole), -1, -1):
        at = whole[depth - 1] if depth else state.nodes[namespace.root]
        usable = [node for node in snapshots_on(state, at, tokens) if node.end <= limit]
        usable = [node for node in usable if _why_not(state, node, at_us) is None and _allowed(node, only)]
        if usable:
            best = max(usable, key=lambda node: (node.end, node.id))
            return Candidate([*whole[:depth], best], best.end, max(found.length, best.end))
    part = _part_of_snapshot(state, namespace, nodes, length, tokens, at_us, only)
    if part is not None and not whole_entries_only(namespace):
        part.known = max(found.length, part.length)
        return part
    reason = stopped or MissReason.NO_SNAPSHOT
    return Candidate([], 0, found.length, reason if found.length else MissReason.NO_COMMON_PREFIX)


def _part_of_snapshot(
    state: State,
    namespace: Namespace,
    nodes: list[Node],
    length: int,
    tokens: bytes,
    at_us: int,
    only: cmd.AdoptPrefix | None,
) -> Candidate | None:
    """Return the longest whole blocks that some cuttable snapshot shares with the prompt, if they are worth adopting.

    `nodes` cover `length` tokens of the prompt. A snapshot anywhere below the last of them shares all those tokens, so the
    newest will do; where no layer grows, all hang below the root and their own tokens tell.
    """
    block, limit = namespace.block_size, count(tokens) - 1
    for depth in range(len(nodes), -1, -1):
        at = nodes[depth - 1].id if depth else namespace.root
        shared = length if depth == len(nodes) else nodes[depth].start
        best: tuple[int, int] = (0, 0)
        for node_id in islice(reversed(state.cuttable_below.get(at, {})), SNAPSHOTS_TRIED):
            node = state.nodes[node_id]
            if _why_not(state, node, at_us) is None and _allowed(node, only) and _path_readable(state, node):
                common = shared if namespace.kv_bytes_per_token else common_tokens(node.label, tokens)
                best = max(best, (min(common, limit, node.end) // block * block, node_id))
        if best[0] >= max(1, state.policy.min_prefix_tokens):
            used = [node for node in nodes[:depth] if node.start < best[0]]
            return Candidate([*used, state.nodes[best[1]]], best[0], best[0])
    return None


def _path_readable(state: State, node: Node) -> bool:
    """The lease runs through the nodes that a cut leaves out, too: none may still fail to reach the disk."""
    return all(state.readable(above.blob) for above in state.path(node.id))


def snapshots_on(state: State, at: Node, tokens: bytes) -> list[Node]:
    """Return the snapshots right below `at` whose tokens the prompt follows to their end."""
    found = []
    for tail, node_id in (at.snapshots or {}).items():
        start = at.end * TOKEN_BYTES
        if tokens[start : start + len(tail)] == tail:
            found.append(state.nodes[node_id])
    return found


def _allowed(node: Node, only: cmd.AdoptPrefix | None) -> bool:
    return only is None or (node.session_key, node.template_sig) == (only.session_key, only.template_sig)
