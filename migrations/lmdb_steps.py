"""The steps of the LMDB environment, in order. A released step is never edited: a change is a new step."""

from typing import Any

from migrations.runner import Step


def _create_index_and_data(env: Any, txn: Any) -> None:
    """1: `index` (key -> size, chunk count, check) and `data` (key + big-endian chunk number -> bytes)."""
    env.open_db(b"index", txn=txn)
    env.open_db(b"data", txn=txn)


STEPS: tuple[Step, ...] = (Step(1, "create index and data", _create_index_and_data),)
