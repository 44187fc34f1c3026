"""What a drill is, and a run of one: its figures, or the reason why it came to none."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.figure import Figure
from tests.faults.scene import Scene

Run = Callable[[Scene, float], Awaitable[list[Figure]]]


@dataclass(frozen=True, slots=True)
class Drill:
    """``number`` and ``promise`` are RELIABILITY's; ``run`` gets the scene that makes its stage, and how
    long its load should last.

    ``seconds`` is that length as a command, ``quick`` the one as a test, None where it takes too long for one.
    """

    number: int
    name: str
    promise: str
    run: Run
    seconds: float = 10.0
    quick: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How a drill went; ``failure`` is set instead of figures if it broke down."""

    drill: Drill
    figures: tuple[Figure, ...]
    took: float
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether every figure holds."""
        return not self.failure and bool(self.figures) and all(figure.holds() for figure in self.figures)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        figures = [{**asdict(figure), "holds": figure.holds()} for figure in self.figures]
        about = {"number": self.drill.number, "name": self.drill.name, "ok": self.ok}
        return {**about, "seconds": round(self.took, 1), "figures": figures, "failure": self.failure}


async def carry_out(drill: Drill, scene: Scene, seconds: float | None = None) -> Result:
    """Run a drill; a breakdown is a result, so that the others still run."""
    start = time.monotonic()
    try:
        with scene.recorded_as(drill.name):
            figures = tuple(await drill.run(scene, drill.seconds if seconds is None else seconds))
    except Exception as error:
        return Result(drill, (), time.monotonic() - start, _words(error))
    return Result(drill, figures, time.monotonic() - start)


def _words(error: BaseException) -> str:
    """What went wrong; of errors that came together, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
