"""Shrinking an environment to its live pages."""

import os
import shutil
from pathlib import Path

import lmdb

from storage.durable import sync_directory
from storage.errors import StoreUnavailable
from storage.lmdb_tier.environment import DATA_FILE, TierOptions, open_environment, translated
from storage.private import make_private_directory, make_private_file

_TEMPORARY = "compacting.tmp"


def compact(directory: Path, options: TierOptions | None = None) -> tuple[int, int]:
    """Rewrite the environment without its free pages; returns the file's size before and after, bytes.

    The caller owns the data directory and no process has the environment open. The copy is made beside, flushed, and
    renamed over the original, so a crash leaves one or the other whole. Raises StoreUnavailable (no room for the copy,
    say; the original stands), StoreDamaged.
    """
    data = directory / DATA_FILE
    if not data.is_file():
        raise StoreUnavailable(f"{data}: there is no environment to compact")
    target = directory / _TEMPORARY
    with translated(directory):
        if target.exists():
            shutil.rmtree(target)
        before = data.stat().st_size
        env = open_environment(directory, options or TierOptions(), read_only=False)
        make_private_directory(target)
        try:
            env.copy(str(target), compact=True)
        except lmdb.Error:
            shutil.rmtree(target)
            raise
        finally:
            env.close()
        copy = target / DATA_FILE
        make_private_file(copy)
        fd = os.open(copy, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(copy, data)
        sync_directory(directory)
        shutil.rmtree(target)
        return before, data.stat().st_size
