"""The engine's process killed and frozen (drills 6 and 7)."""

import asyncio
import os
import signal
import time
from contextlib import suppress

from tests.faults.background_load import BackgroundLoad
from tests.faults.figure import Figure, count, seconds
from tests.faults.scene import Scene
from tests.faults.stage import Stage

RATE = 5.0
DEADLINE_SECONDS = 2.0  # the service's request_timeout_ms
CLOSED_SECONDS = 30.0  # four canaries, and the patience with an engine and a collector that do not close
GRACE_SECONDS = 0.25  # the way back from the service to the asker


async def killed(scene: Scene, length: float) -> list[Figure]:
    """Drill 6: unready at once, every request answered by its deadline, and the process ends to be started again."""
    async with scene.stage() as at:
        async with BackgroundLoad(at.urls, at.users, RATE) as load:
            await asyncio.sleep(length)
            os.kill(at.replicas[0].engine_pid, signal.SIGKILL)
            gone = time.monotonic()
            unready = await _unready_after(at, gone)
            ended = await at.replicas[0].ended(60.0)
        hung = [
            answer for answer in load.answers if answer.status and answer.latency > DEADLINE_SECONDS + GRACE_SECONDS
        ]
        silent = [answer for answer in load.between(gone, gone + unready) if not answer.status]
        code = at.replicas[0].running.poll()
        return [
            seconds("unready after", unready, 2.0),
            count("answers past their deadline", len(hung)),
            count("requests before that without an answer", len(silent)),
            seconds("process ended after", time.monotonic() - gone if ended is None else ended + unready, 10.0),
            count("exit code", -1 if code is None else code, 1),
        ]


async def frozen(scene: Scene, length: float) -> list[Figure]:
    """Drill 7: unready within some canaries; until then requests get the fallback, within their deadline."""
    async with scene.stage() as at:
        async with BackgroundLoad(at.urls, at.users, RATE) as load:
            await asyncio.sleep(length)
            engine = at.replicas[0].engine_pid
            os.kill(engine, signal.SIGSTOP)
            still = time.monotonic()
            try:
                unready = await _unready_after(at, still)
                answers = load.between(still + 0.5, still + unready - DEADLINE_SECONDS)
                ended = await at.replicas[0].ended(60.0)
            finally:
                with suppress(ProcessLookupError):  # the service kills it itself as it ends
                    os.kill(engine, signal.SIGKILL)
        full = [answer for answer in answers if answer.status == 200 and answer.degraded]
        late = [answer for answer in answers if answer.latency > DEADLINE_SECONDS + GRACE_SECONDS]
        return [
            seconds("unready after", unready, 8.0),
            Figure("answered by the fallback", len(full) / max(len(answers), 1), "at least", 1.0, hard=True),
            count("answers past their deadline", len(late)),
            seconds("process ended after", 60.0 if ended is None else unready + ended, CLOSED_SECONDS),
        ]


async def _unready_after(at: Stage, since: float, patience: float = 60.0) -> float:
    """Seconds until the replica says that it is not ready (or says nothing more)."""
    while time.monotonic() < since + patience:
        if await at.replicas[0].readiness(at.client) != 200:
            return time.monotonic() - since
        await asyncio.sleep(0.02)
    raise TimeoutError(f"still ready {patience:.0f} s after")
