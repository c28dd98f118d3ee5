"""Namespaces come with every new salt; those that hold nothing any more are forgotten."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import NamespaceKey
from tests.core.world import World


def salted(salt: str) -> NamespaceKey:
    return NamespaceKey("model", tenant_salt=salt, block_size=4)


def sweep(world: World, limit: int = 50) -> list[ev.Event]:
    return world.do(cmd.SweepExpired(at_us=world.at_us, limit=limit))


def test_bare_namespaces_end_with_a_sweep() -> None:
    """What holds pieces, what a request uses and the newest of the model stay; the others leave no trace."""
    world = World()
    world.store(range(20))
    for salt in "abcd":
        world.open(salted(salt))
    world.adopt(range(6), "running", namespace=world.state.by_namespace[salted("b").digest()])
    closed = [world.state.by_namespace[salted(salt).digest()] for salt in "ca"]
    assert sweep(world) == [*(ev.NamespaceClosed(n) for n in closed), ev.SweepDone(2, False)]
    assert [n.key.tenant_salt for n in world.state.namespaces.values()] == ["", "b", "d"]
    world.reload()
    assert world.state.related == {n.key.relatives({}): [n.id] for n in world.state.namespaces.values()}
    assert sweep(world) == []


def test_a_forgotten_namespace_comes_back_under_a_new_number() -> None:
    """Its number is not used again, and what is kept there later is found."""
    world = World()
    first = world.open(salted("a"))
    world.open(salted("b"))
    sweep(world)
    world.namespace = world.open(salted("a"))
    assert world.namespace > first
    world.store(range(20))
    assert getattr(world.adopt(range(30))[0], "length", 0) == 20


def test_thousands_of_salts_leave_in_bounded_steps() -> None:
    """A sweep ends so many as it may, and says that there are more."""
    world = World()
    for number in range(100):
        world.open(salted(str(number)))
    assert sweep(world, limit=64)[-1] == ev.SweepDone(64, True)
    assert sweep(world, limit=64)[-1] == ev.SweepDone(36, False)
    assert len(world.state.namespaces) == 1
    assert len(world.state.nodes) == 1
