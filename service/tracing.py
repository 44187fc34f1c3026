"""Spans as the traced code sees them: a name, a few attributes, and next to nothing while traces are off.

It knows no OpenTelemetry: `otel_tracing` does, and is imported only when traces are wanted. An attribute is a count, a
time, a version or an outcome, never a user, an item or a text.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

Attribute = str | bool | int | float


class Span(Protocol):
    """One timed piece of work."""

    @property
    def trace_id(self) -> str:
        """The trace it belongs to, 32 hexadecimal digits; empty while nothing is traced."""
        ...

    def rename(self, name: str) -> None:
        """Give it the name that was not known when it began."""
        ...

    def set(self, **attributes: Attribute) -> None:
        """Note what is known now; a later value replaces an earlier one."""
        ...


class Tracing(Protocol):
    """Where spans come from; each ends with its block and is the parent of what begins inside."""

    def request(self, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """A request's own span, a child of the caller's if ``headers`` hold a W3C ``traceparent``."""
        ...

    def span(self, name: str) -> AbstractContextManager[Span]:
        """A part of the request at work; nothing outside of one, so that background work makes no traces."""
        ...


class NoSpan:
    """A span that nobody looks at."""

    trace_id = ""

    def __enter__(self) -> "NoSpan":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rename(self, name: str) -> None:
        """Nothing."""

    def set(self, **attributes: Attribute) -> None:
        """Nothing."""


NO_SPAN = NoSpan()


class NoTracing:
    """Traces are off."""

    def request(self, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Nothing."""
        return NO_SPAN

    def span(self, name: str) -> AbstractContextManager[Span]:
        """Nothing."""
        return NO_SPAN
