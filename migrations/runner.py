"""Running numbered LMDB steps. Knows LMDB and plain values, none of the program's types."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lmdb

META_DB = b"meta"
VERSION_KEY = b"schema_version"


class Step(NamedTuple):
    """One change of the environment, from version `number - 1` to `number`.

    `apply(env, txn)` works inside the write transaction it is given. A step that throws stored pieces away says so in
    `discards`, so that the caller can log it.
    """

    number: int
    name: str
    apply: Callable[[Any, Any], None]
    discards: bool = False


class NewerSchema(Exception):
    """The environment was written by a newer program."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"schema version {found}, known up to {known}")
        self.found = found
        self.known = known


def version_of(env: Any) -> int:
    """Return the schema version of an open environment; 0 for an empty one. Raises lmdb.Error."""
    try:
        meta = env.open_db(META_DB, create=False)
    except (lmdb.NotFoundError, lmdb.ReadonlyError):
        return 0
    with env.begin(db=meta) as txn:
        value = txn.get(VERSION_KEY)
    return int(value) if value is not None else 0


def pending(version: int, steps: Sequence[Step]) -> list[Step]:
    """Return the steps still to be taken from `version`. Raises NewerSchema."""
    known = steps[-1].number if steps else 0
    if version > known:
        raise NewerSchema(version, known)
    return [step for step in steps if step.number > version]


def migrate(env: Any, steps: Sequence[Step]) -> list[Step]:
    """Take every pending step; returns those taken. Raises NewerSchema (nothing is touched then), lmdb.Error.

    Each step and its version number are one transaction, so that after a crash the step of the version found is whole.
    """
    check_numbers(steps)
    todo = pending(version_of(env), steps)
    for step in todo:
        with env.begin(write=True) as txn:
            step.apply(env, txn)
            meta = env.open_db(META_DB, txn=txn)
            txn.put(VERSION_KEY, str(step.number).encode(), db=meta)
    return todo


def check_numbers(steps: Sequence[Step]) -> None:
    """Assert that steps are numbered 1, 2, 3, ... without a gap."""
    numbers = [step.number for step in steps]
    assert numbers == list(range(1, len(steps) + 1)), f"migration steps are numbered {numbers}"
