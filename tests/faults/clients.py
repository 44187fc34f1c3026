"""Clients that go away in the middle, and five times as many as can be served (drills 8 and 9)."""

import asyncio
import json
import time

import httpx

from loadtest.playback import resident_bytes
from tests.faults.background_load import BackgroundLoad, quantile_ms
from tests.faults.figure import Figure, Rule, count, milliseconds, seconds
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage

RATE = 5.0
LEAVING = 500
OVERLOAD = 5.0
MAX_INFLIGHT = 16
CLOSED_LOOP_SECONDS = 10.0


async def gone(scene: Scene, length: float) -> list[Figure]:
    """Drill 8: 500 clients hang up; the engine drops their work, and those who stay are served."""
    async with scene.stage() as at, BackgroundLoad(at.urls, at.users, RATE) as load:
        await asyncio.sleep(3.0)
        replica, start = at.replicas[0], time.monotonic()
        await asyncio.gather(*(_hang_up(replica, at.users[n % len(at.users)]) for n in range(LEAVING)))
        left = time.monotonic()
        base = await _back_to_base(at, left)
        await asyncio.sleep(length)
        unfinished = [answer for answer in load.between(start, left + length - 2) if not answer.full]
        answers = load.between(start, left + length - 2)
        ready = await replica.readiness(at.client)
    return [
        seconds("beams of the gone let go after", base, 1.0),
        at_least("goodput of those who stayed", 1 - len(unfinished) / max(len(answers), 1), 0.95),
        count("status of /health/ready", ready, 200),
    ]


async def _hang_up(replica: Replica, user: str) -> None:
    """Ask, wait a moment, and close the connection without reading."""
    body = json.dumps({"user_id": user, "num_results": 50}).encode()
    head = (
        f"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", replica.port)
        writer.write(head.encode() + body)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()
    except OSError:
        pass


async def _back_to_base(at: Stage, since: float) -> float:
    """Seconds until no more requests are at work than the load that stays brings by itself."""
    while time.monotonic() < since + 60:
        if (await at.replicas[0].metrics(at.client))["rec_inflight"] <= RATE:
            return time.monotonic() - since
        await asyncio.sleep(0.02)
    return float("inf")


async def overload(scene: Scene, length: float) -> list[Figure]:
    """Drill 9: five times the capacity offered; what is accepted is served in time, the rest is told when to return."""
    async with scene.stage(max_inflight=MAX_INFLIGHT) as at:
        capacity = await _capacity(at)
        before = _resident(at.replicas[0])
        async with BackgroundLoad(at.urls, at.users, OVERLOAD * capacity) as load:
            start = time.monotonic()
            await asyncio.sleep(length)
            answers = load.between(start + 1, start + length - 2)
        after = _resident(at.replicas[0])
    served = [answer for answer in answers if answer.full]
    turned = [answer for answer in answers if answer.status != 200]
    return [
        at_least(f"goodput as a share of the capacity of {capacity:.0f}/s", len(served) / (length - 3) / capacity, 0.9),
        milliseconds("p99 of what was accepted", quantile_ms(served, 0.99), 1200 * MAX_INFLIGHT / capacity),
        count("turned away with another status than 503", sum(answer.status != 503 for answer in turned)),
        count("turned away without Retry-After", sum(not answer.retry_after for answer in turned)),
        Figure("memory afterwards", after / before, "at most", 1.1, " of before"),
    ]


async def _capacity(at: Stage) -> float:
    """Full answers a second when `MAX_INFLIGHT` askers ask without a pause."""
    end, done = time.monotonic() + CLOSED_LOOP_SECONDS, 0

    async def ask(number: int) -> None:
        nonlocal done
        async with httpx.AsyncClient(timeout=30.0) as client:
            while time.monotonic() < end:
                body = {"user_id": at.users[number % len(at.users)], "num_results": 10}
                answer = await client.post(f"{at.urls[0]}/recommend", json=body)
                done += answer.status_code == 200 and not answer.json()["degraded"]

    await asyncio.gather(*map(ask, range(MAX_INFLIGHT)))
    return done / CLOSED_LOOP_SECONDS


def _resident(replica: Replica) -> int:
    """Memory of the service and its engine, bytes."""
    return sum(resident_bytes(pid) for pid in (replica.running.pid, replica.engine_pid))


def at_least(name: str, value: float, limit: float) -> Figure:
    """A share that must not be smaller."""
    rule: Rule = "at least"
    return Figure(name, value, rule, limit)
