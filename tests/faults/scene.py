"""Stages for drills that follow one another: one is used again while it is whole and is what the next drill asks for.

Starting a replica takes most of a drill's time. A drill that breaks down or leaves a replica unready
leaves no stage behind.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.recording import Recorder, Recording
from tests.faults.stage import Stage, stage


class Scene:
    """An async context; ``recordings`` are the drills' metrics so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._standing: tuple[Stage, dict[str, Any]] | None = None
        self._stack = AsyncExitStack()
        self._drill = ""
        self.recordings: list[Recording] = []

    def folder(self) -> Path:
        """A new empty folder, for what a drill writes beside its stage."""
        self._made += 1
        made = self._folder / f"{self._made}"
        made.mkdir(parents=True)
        return made

    @contextmanager
    def recorded_as(self, drill: str) -> Iterator[None]:
        """What is recorded meanwhile bears this drill's name."""
        before, self._drill = self._drill, drill
        try:
            yield
        finally:
            self._drill = before

    @asynccontextmanager
    async def stage(self, **wanted: Any) -> AsyncIterator[Stage]:
        """See `stage.stage`, for the arguments too."""
        try:
            at = await self._stage(wanted)
            self.recordings.append(Recording(self._drill))
            async with Recorder(self.recordings[-1], at.replicas):
                yield at
        except BaseException:
            await self.clear()
            raise

    async def clear(self) -> None:
        """End what is standing; the next drill begins on a new stage."""
        self._standing = None
        await self._stack.aclose()

    async def __aenter__(self) -> "Scene":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.clear()

    async def _stage(self, wanted: dict[str, Any]) -> Stage:
        if self._standing and self._standing[1] == wanted and await self._standing[0].whole():
            await self._standing[0].load_histories()
            return self._standing[0]
        await self.clear()
        at = await self._stack.enter_async_context(stage(self.folder(), **wanted))
        self._standing = at, wanted
        return at
