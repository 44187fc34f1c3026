"""Waiting for an answer no longer than a limit, without blaming the answerer for an event loop that is late itself.

On a busy machine the loop may come round later than the limit, with the answer in the socket already: `asyncio.timeout`
would end the work in the same turn in which the answer is read. So the loop gets a few turns more before work is given
up; they cost no time where there is nothing to read.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

TURNS = 5

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``.

    Raises:
        TimeoutError: it has none after ``seconds``; the work is cancelled.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_looked_at)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(TURNS):
            if task.done():
                break
            await asyncio.sleep(0)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()


def _looked_at(task: "asyncio.Task[Any]") -> None:
    # work that failed while nobody waited any more is not reported as forgotten
    if not task.cancelled():
        task.exception()
