"""Progress as a bar on a terminal, as a few plain lines elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn


class Report(Protocol):
    """Where long steps say how far they are."""

    def say(self, text: str) -> None:
        """Print one line."""

    def step(self, text: str, in_bytes: bool = False) -> contextlib.AbstractContextManager["Advance"]:
        """Begin a step; call what the context manager yields with (done, total)."""


class Advance(Protocol):
    """Takes how much of a step is done."""

    def __call__(self, done: int, total: int) -> None: ...


class ConsoleReport:
    """Reports to standard error, so that standard output stays for answers."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def step(self, text: str, in_bytes: bool = False) -> Iterator[Advance]:
        """Begin a step: a moving bar on a terminal, a line elsewhere."""
        if not self._console.is_terminal:
            self.say(text)
            yield lambda done, total: None
            return
        columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
        if in_bytes:
            columns.append(DownloadColumn())
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(text, total=None)
            yield lambda done, total: bar.update(task, completed=min(done, total), total=total)


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None:
        """Print nothing."""

    @contextlib.contextmanager
    def step(self, text: str, in_bytes: bool = False) -> Iterator[Advance]:
        """Show nothing."""
        yield lambda done, total: None
