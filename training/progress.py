"""Progress for people: bars with time left on a terminal, plain lines otherwise.

Stages get a callable ``(done, total, note)`` and know nothing of terminals. Everything goes to standard error, so that
standard output ends with the one JSON object that programs read.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

PLAIN_SECONDS = 15.0


class Progress(Protocol):
    """Told how far a stage is."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total``, with a few words such as the loss."""
        ...


def silent(done: int, total: int, note: str = "") -> None:
    """A `Progress` that says nothing."""


class Reporter:
    """Prints lines and follows tasks."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    def say(self, line: str) -> None:
        """Print one line, as it is."""
        self._console.print(line, markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        """Print a table."""
        self._console.print(table)

    @contextmanager
    def task(self, label: str) -> Iterator[Progress]:
        """Follow a task until the block ends."""
        if self._console.is_terminal:
            with self._bar() as bars:
                number = bars.add_task(label, total=None, note="")

                def follow(done: int, total: int, note: str = "") -> None:
                    bars.update(number, completed=done, total=total, note=note)

                yield follow
        else:
            yield _PlainTask(label, self)

    def _bar(self) -> RichProgress:
        return RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )


class QuietReporter(Reporter):
    """Says nothing and shows nothing."""

    def say(self, line: str) -> None:
        """Swallow the line."""

    def show(self, table: Table) -> None:
        """Swallow the table."""

    @contextmanager
    def task(self, label: str) -> Iterator[Progress]:
        """Follow nothing."""
        yield silent


class _PlainTask:
    """One line at the start, every few seconds, and at the end."""

    def __init__(self, label: str, reporter: Reporter) -> None:
        self._label, self._reporter = label, reporter
        self._started = self._printed = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if done < total and now - self._printed < PLAIN_SECONDS:
            return
        self._printed = now
        spent = now - self._started
        left = spent / max(done, 1) * (total - done)
        self._reporter.say(f"{self._label} {done}/{total}, {spent:.0f} s, {left:.0f} s left {note}".rstrip())
