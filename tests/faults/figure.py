"""One measured figure of a drill beside what it must be.

A ``hard`` figure is about correctness and must hold everywhere; the others are times, which a loaded machine stretches:
`slack` widens their limits where a drill runs as a test, and the drill as a command allows none.
"""

from dataclasses import dataclass
from typing import Literal

Rule = Literal["at most", "at least", "exactly"]


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` in ``unit``, held against ``limit``."""

    name: str
    value: float
    rule: Rule
    limit: float
    unit: str = ""
    hard: bool = False

    def holds(self, slack: float = 1.0) -> bool:
        """Whether the limit is kept; times may be ``slack`` times as long."""
        if self.rule == "exactly":
            return self.value == self.limit
        if self.rule == "at most":
            return self.value <= self.limit * (1.0 if self.hard else slack)
        return self.value >= self.limit / (1.0 if self.hard else slack)

    @property
    def line(self) -> str:
        """For people."""
        verdict = "ok   " if self.holds() else "SHORT"
        return f"  {verdict} {self.name}: {_plain(self.value)}{self.unit} ({self.rule} {_plain(self.limit)}{self.unit})"


def count(name: str, value: float, limit: float = 0) -> Figure:
    """Something that must happen exactly so often, wherever the drill runs."""
    return Figure(name, value, "exactly", limit, hard=True)


def seconds(name: str, value: float, limit: float) -> Figure:
    """A time that must not be longer."""
    return Figure(name, value, "at most", limit, " s")


def milliseconds(name: str, value: float, limit: float) -> Figure:
    """The same in ms."""
    return Figure(name, value, "at most", limit, " ms")


def _plain(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
