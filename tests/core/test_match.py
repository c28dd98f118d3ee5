"""How far a namespace's tree knows a sequence."""

from mlxcel.core.match import match_prefix
from mlxcel.core.tokens import from_ids
from tests.core.world import World


def known(world: World, ids: list[int]) -> tuple[list[int], int, int, int]:
    """Return (whole nodes, partial node, its tokens, length)."""
    found = match_prefix(world.state, world.state.namespaces[world.namespace], from_ids(ids))
    return [node.id for node in found.path], found.partial, found.partial_tokens, found.length


def test_an_empty_tree_knows_nothing() -> None:
    """Nothing matches before anything is stored."""
    assert known(World(), list(range(12))) == ([], 0, 0, 0)


def test_whole_nodes_then_part_of_one_then_no_more() -> None:
    """20 tokens are kept as nodes of 8, 8 and 4; a prompt that leaves after 13 shares whole blocks only."""
    world = World()
    world.store(range(20))
    assert known(world, list(range(20))) == ([2, 3, 4], 0, 0, 20)
    assert known(world, list(range(23))) == ([2, 3, 4], 0, 0, 20)
    assert known(world, [*range(13), 99, 99, 99]) == ([2], 3, 4, 12)
    assert known(world, [*range(11), 99, 99, 99]) == ([2], 0, 0, 8)
    assert known(world, [*range(8), 99, 99, 99, 99]) == ([2], 0, 0, 8)
    assert known(world, list(range(7))) == ([], 2, 4, 4)
    assert known(world, list(range(3))) == ([], 0, 0, 0)


def test_limit_cuts_the_walk() -> None:
    """A limit in tokens ends the match as if the sequence ended there."""
    world = World()
    world.store(range(20))
    namespace = world.state.namespaces[world.namespace]
    assert match_prefix(world.state, namespace, from_ids(range(20)), 15).length == 12
    assert match_prefix(world.state, namespace, from_ids(range(20)), 8).length == 8


def test_namespaces_share_nothing() -> None:
    """Equal tokens under another salt are unknown."""
    from mlxcel.core.keys import NamespaceKey

    world = World()
    world.store(range(20))
    world.namespace = world.open(NamespaceKey("model", tenant_salt="other", block_size=4))
    assert known(world, list(range(20))) == ([], 0, 0, 0)
