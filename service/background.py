"""Work that runs beside the requests for as long as the service does: the catalogue's follower, the canary.

A task that dies unseen is the worst failure, so its end is logged and makes the replica unready.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from service.health import Health


def run_in_background(stack: AsyncExitStack, health: Health, name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until ``stack`` is closed."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception():
            structlog.get_logger().error("background_work_failed", work=name, exc_info=task.exception())
            health.stopped(name)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    stack.push_async_callback(_end, task)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
