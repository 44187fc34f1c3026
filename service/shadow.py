"""Shadow mode: a model that ranks what others answer, so that it can be judged before anybody sees it.

It works after the answer has left, a bounded number of requests at a time; what does not fit is left out and counted.
The metrics tell how it fared and how much of its list was in the answer. A shadow's fault is nobody else's.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from service.errors import RequestError
from service.lane import Ask, Place
from service.lanes import Lanes, ServedLane
from service.metrics import Metrics

AT_WORK = 4


class Shadows:
    """Follows answers with every shadow lane."""

    def __init__(self, lanes: Lanes, metrics: Metrics) -> None:
        self._lanes, self._metrics = lanes, metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, ask: Ask, places: Sequence[Place]) -> None:
        """Let shadows rank what was answered with ``places``."""
        for served in self._lanes.shadows():
            if len(self._tasks) >= AT_WORK:
                self._count(served, "left_out")
                continue
            task = asyncio.create_task(self._rank(served, ask, places))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what is at work."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _rank(self, served: ServedLane, ask: Ask, places: Sequence[Place]) -> None:
        again = replace(ask, request_id=f"{ask.request_id}-shadow", deadline=time.monotonic() + ask.limit_ms / 1000)
        with served.at_work() as lane:
            try:
                ranked = await lane.rank(again)
            except RequestError as error:
                structlog.get_logger().warning("shadow_failed", problem=error.problem, fault=error.detail)
                self._count(served, "failed")
                return
        self._count(served, "fallback" if ranked.fallback else "ranked")
        if not ranked.fallback and places:
            answered = {place.item.item.item_id for place in places}
            common = sum(place.item.item.item_id in answered for place in ranked.places)
            self._metrics.shadow_overlap.labels(served.model_version).observe(common / len(places))

    def _count(self, served: ServedLane, outcome: str) -> None:
        self._metrics.shadow.labels(served.model_version, outcome).inc()
