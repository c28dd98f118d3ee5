"""A sign of life on long runs: on stderr, and only where a person watches."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
_STEP = 500


@contextmanager
def ticking(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that counts steps done."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda steps: progress.advance(task, steps)


def watched(items: Iterable[Item], title: str) -> Iterator[Item]:
    """Yield the items, showing how many went by."""
    with ticking(title) as tick:
        for number, item in enumerate(items, start=1):
            yield item
            if number % _STEP == 0:
                tick(_STEP)
