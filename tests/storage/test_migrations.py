"""Numbered steps of the store and upcasters of events."""

import ast
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

import migrations
from migrations.events import UPCASTERS, newest_tag, upcast
from migrations.lmdb_steps import STEPS
from migrations.runner import NewerSchema, Step, check_numbers, migrate, pending, version_of


def opened(path: Path) -> Any:
    return lmdb.open(str(path), max_dbs=8)


def adding(number: int) -> Step:
    def apply(env: Any, txn: Any) -> None:
        txn.put(b"step", b"%d" % number, db=env.open_db(b"meta", txn=txn))

    return Step(number, f"step {number}", apply)


def test_a_new_environment_takes_every_step_once(tmp_path: Path) -> None:
    """All steps run in order on an empty environment and none runs again."""
    env = opened(tmp_path)
    assert version_of(env) == 0
    assert [step.number for step in migrate(env, STEPS)] == [step.number for step in STEPS]
    assert version_of(env) == STEPS[-1].number
    assert migrate(env, STEPS) == []
    env.close()


def test_only_the_missing_steps_run(tmp_path: Path) -> None:
    """From version 1, steps 2 and 3 run, and the version follows each."""
    env = opened(tmp_path)
    migrate(env, [adding(1)])
    assert [step.number for step in pending(1, [adding(1), adding(2), adding(3)])] == [2, 3]
    assert [step.number for step in migrate(env, [adding(1), adding(2), adding(3)])] == [2, 3]
    assert version_of(env) == 3
    env.close()


def test_a_step_that_fails_changes_neither_data_nor_version(tmp_path: Path) -> None:
    """A step and its version number are one transaction: when the step raises, both stay."""

    def half(env: Any, txn: Any) -> None:
        txn.put(b"step", b"half", db=env.open_db(b"meta", txn=txn))
        raise RuntimeError("killed here")

    env = opened(tmp_path)
    with pytest.raises(RuntimeError):
        migrate(env, [adding(1), Step(2, "half", half)])
    assert version_of(env) == 1
    with env.begin(db=env.open_db(b"meta")) as txn:
        assert txn.get(b"step") == b"1"
    env.close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A version beyond the last step is NewerSchema with both numbers."""
    with pytest.raises(NewerSchema) as caught:
        pending(5, [adding(1)])
    assert (caught.value.found, caught.value.known) == (5, 1)


def test_numbers_have_no_gap() -> None:
    """The released steps are numbered 1, 2, 3, ...; a gap is a broken invariant."""
    check_numbers(STEPS)
    with pytest.raises(AssertionError):
        check_numbers([adding(1), adding(3)])


def test_upcasters_chain_on_plain_lists() -> None:
    """An old event goes through every step to the newest tag; the given list is not changed; new ones pass through."""
    steps = {
        "adopted/1": ("adopted/2", lambda event: ["adopted/2", *event[1:], 0]),
        "adopted/2": ("adopted/3", lambda event: ["adopted/3", event[1] * 10, *event[2:]]),
    }
    old = ["adopted/1", 4]
    assert upcast(old, steps) == ["adopted/3", 40, 0]
    assert old == ["adopted/1", 4]
    assert upcast(["adopted/3", 1], steps) == ["adopted/3", 1]
    assert newest_tag("adopted/1", steps) == "adopted/3"


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        ([], {}),
        ([4], {}),
        (["a/1"], {"a/1": ("a/2", lambda event: ["a/9"])}),
        (["a/1"], {"a/1": ("a/2", lambda event: ["a/2"]), "a/2": ("a/1", lambda event: ["a/1"])}),
    ],
)
def test_wrong_events_and_wrong_steps_are_errors(event: list[Any], steps: dict[str, Any]) -> None:
    """No tag, a step with a wrong result, and a circle of steps are ValueErrors, never a loop."""
    with pytest.raises(ValueError, match=r"tag|upcaster"):
        upcast(event, steps)


def test_every_registered_upcaster_leads_to_an_end() -> None:
    """No chain of released upcasters goes round in a circle."""
    for tag in UPCASTERS:
        assert newest_tag(tag) not in UPCASTERS


def test_migrations_import_nothing_of_the_program() -> None:
    """The migrations import the standard library, lmdb and themselves alone."""
    allowed = {*sys.stdlib_module_names, "lmdb", "msgspec", "migrations"}
    assert migrations.__file__ is not None
    for path in Path(migrations.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path
