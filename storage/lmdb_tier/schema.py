"""Bringing an environment to the present schema."""

from pathlib import Path
from typing import Any

from migrations.lmdb_steps import STEPS
from migrations.runner import NewerSchema, Step, migrate, pending, version_of
from storage.errors import StoreUnavailable
from storage.lmdb_tier.environment import newer_schema


def bring_up_to_date(env: Any, directory: Path, read_only: bool) -> list[Step]:
    """Take the steps that are pending, each with its version in one transaction; returns them.

    Raises SchemaNewerThanCode (nothing is changed), and StoreUnavailable for an older one when `read_only`.
    """
    try:
        if not read_only:
            return migrate(env, STEPS)
        if pending(version_of(env), STEPS):
            raise StoreUnavailable(f"{directory}: older schema; it is brought up to date when the daemon opens it")
    except NewerSchema as error:
        raise newer_schema(directory, error.found, error.known) from error
    return []
