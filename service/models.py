"""The use case of /models: open a checkpoint beside those that are served, change shares, exchange one, take one out.

Opening takes as long as a start does (engine, item log, first canary) and happens in the background; a lane gets
traffic only when it is ready, so nothing waits for it, and a checkpoint that cannot be served changes nothing. What is
done here holds for this replica until it restarts: settings say what a start serves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from service.errors import ConflictError, InvalidRequestError, RequestError, StartupError, UnknownModelError
from service.lanes import Lanes, ServedLane, drain

REMEMBERED_FAILURES = 5

State = Literal["opening", "open", "closing", "failed"]
OpenLane = Callable[[Path, float, bool], Awaitable[ServedLane]]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One checkpoint that is served, comes, goes, or could not be opened (``fault``)."""

    checkpoint: str
    state: State
    model_version: str | None = None
    share: float = 0.0
    shadow: bool = False
    well: bool = False
    inflight: int = 0
    catalog_version: int | None = None
    fault: str | None = None


class Models:
    """Opens and closes lanes.

    Args:
        lanes: what is served.
        open_lane: makes a lane ready from a checkpoint's folder, with its share and whether it is a shadow.
        root: the folder that checkpoints must lie in.
        drain_seconds: how long a lane that goes may take to answer what it has begun.
    """

    def __init__(self, lanes: Lanes, open_lane: OpenLane, root: Path, drain_seconds: float) -> None:
        self._lanes, self._open_lane, self._root, self._drain_seconds = lanes, open_lane, root, drain_seconds
        self._opening: Path | None = None
        self._closing: list[ServedLane] = []
        self._failed: list[ModelStatus] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def list(self) -> list[ModelStatus]:
        """Everything that is served, comes, goes or failed lately."""
        opening = [ModelStatus(str(self._opening), "opening")] if self._opening else []
        served = [_status(each, "open") for each in self._lanes]
        return [*served, *(_status(each, "closing") for each in self._closing), *opening, *self._failed]

    def open(self, checkpoint: str, *, share: float, shadow: bool, replace: bool) -> ModelStatus:
        """Begin to open a checkpoint; with ``replace`` it takes all traffic when it is ready, and the others go.

        Raises:
            InvalidRequestError: the folder lies elsewhere or holds no checkpoint.
            ConflictError: another one is being opened, or this one is served.
        """
        folder = self._folder(checkpoint)
        if self._opening is not None:
            raise ConflictError(f"{self._opening.name} is being opened; wait for it")
        if any(served.checkpoint == folder for served in self._lanes):
            raise ConflictError("this checkpoint is served already; change its share instead")
        self._opening = folder
        self._spawn(self._open(folder, share, shadow, replace))
        return ModelStatus(str(folder), "opening", share=share, shadow=shadow)

    def change(self, model_version: str, *, share: float | None, shadow: bool | None) -> ModelStatus:
        """Give a lane another share, or make it a shadow or none.

        Raises:
            UnknownModelError: no such model is served.
            ConflictError: nobody would get traffic.
        """
        served = self._find(model_version)
        if share == 0 and not self._others_with_traffic(served):
            raise ConflictError("it is the only model with traffic; give another one a share first")
        served.share = served.share if share is None else share
        served.shadow = served.shadow if shadow is None else shadow
        return _status(served, "open")

    def close(self, model_version: str) -> ModelStatus:
        """Take a lane out; it answers what it has begun and is closed.

        Raises:
            UnknownModelError: no such model is served.
            ConflictError: nobody would get traffic.
        """
        served = self._find(model_version)
        if not self._others_with_traffic(served):
            raise ConflictError("it is the only model with traffic; give another one a share first")
        self._take_out(served)
        return _status(served, "closing")

    async def end(self) -> None:
        """Stop what is under way and close every lane, at the end of the service."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for served in [*self._lanes, *self._closing]:
            self._lanes.remove(served)
            await served.close()

    async def _open(self, folder: Path, share: float, shadow: bool, replace: bool) -> None:
        try:
            served = await self._open_lane(folder, share, shadow)
        except (StartupError, RequestError) as error:
            structlog.get_logger().error("model_not_opened", checkpoint=folder.name, fault=str(error))
            self._failed = [*self._failed, ModelStatus(str(folder), "failed", fault=str(error))][-REMEMBERED_FAILURES:]
            return
        finally:
            self._opening = None
        if self._lanes.find(served.model_version):
            structlog.get_logger().error("model_not_opened", checkpoint=folder.name, fault="its version is served")
            await served.close()
            return
        before = list(self._lanes)
        self._lanes.add(served)
        structlog.get_logger().info("model_opened", model_version=served.model_version, share=share, shadow=shadow)
        if replace:
            served.share = served.share or 1.0
            for other in before:
                self._take_out(other)

    def _take_out(self, served: ServedLane) -> None:
        self._lanes.remove(served)
        self._closing.append(served)
        self._spawn(self._close(served))

    async def _close(self, served: ServedLane) -> None:
        if not await drain(served, self._drain_seconds):
            structlog.get_logger().warning("model_closed_at_work", requests=served.inflight)
        self._closing.remove(served)
        await served.close()
        structlog.get_logger().info("model_closed", model_version=served.model_version)

    def _folder(self, checkpoint: str) -> Path:
        root = self._root.resolve()
        try:
            folder = (root / checkpoint).resolve()
            found = (folder / "manifest.json").is_file()
        except (OSError, ValueError) as error:  # longer than a file system takes, or with a NUL in it
            raise InvalidRequestError("this cannot be the name of a folder", pointer="/checkpoint") from error
        if not folder.is_relative_to(root):
            raise InvalidRequestError("the folder lies outside of the models' root", pointer="/checkpoint")
        if not found:
            raise InvalidRequestError("there is no checkpoint in this folder", pointer="/checkpoint")
        return folder

    def _find(self, model_version: str) -> ServedLane:
        served = self._lanes.find(model_version)
        if served is None:
            raise UnknownModelError("no model of this version is served here")
        return served

    def _others_with_traffic(self, served: ServedLane) -> bool:
        return any(other.share > 0 for other in self._lanes if other is not served)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _status(served: ServedLane, state: State) -> ModelStatus:
    return ModelStatus(
        str(served.checkpoint),
        state,
        served.model_version,
        served.share,
        served.shadow,
        served.is_well(),
        served.inflight,
        served.catalogs.current.version,
    )
