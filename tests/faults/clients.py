"""Clients that go away in the middle, and five times as many as can be served (drills 8 and 9)."""

import asyncio
import json
import os
import time

import httpx
import numpy as np

from loadtest.playback import resident_bytes
from tests.faults.background_load import Answer, BackgroundLoad, quantile_ms
from tests.faults.figure import Figure, Rule, count, milliseconds, seconds
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage

RATE = 5.0
LEAVING = 500
OVERLOAD = 5.0
MAX_INFLIGHT = 16
WIDTH = 50  # at least as many beams as a request has
WIDE = 128
CLOSED_LOOP_SECONDS = 10.0


async def gone(scene: Scene, length: float) -> list[Figure]:
    """Drill 8: 500 clients hang up; the engine drops their work, and those who stay are served."""
    async with scene.stage() as at, BackgroundLoad(at.urls, at.users, RATE) as load:
        await asyncio.sleep(3.0)
        replica, start = at.replicas[0], time.monotonic()
        await asyncio.gather(*(_hang_up(replica, at.users[n % len(at.users)]) for n in range(LEAVING)))
        left = time.monotonic()
        base = await _back_to_base(at, left)
        rows = await _rows_back_to_base(at, left)
        await asyncio.sleep(length)
        unfinished = [answer for answer in load.between(start, left + length - 2) if not answer.full]
        answers = load.between(start, left + length - 2)
        held = (await replica.metrics(at.client))["rec_engine_requests"]
        ready = await replica.readiness(at.client)
    return [
        seconds("requests of the gone let go after", base, 1.0),
        seconds("beam rows of the gone let go after", rows, 1.0),
        Figure("requests that the engine itself holds afterwards", held, "at most", RATE, hard=True),
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
    return await _until(at, since, "rec_inflight", RATE)


async def _rows_back_to_base(at: Stage, since: float) -> float:
    """The same of the beams that wait for the engine or are inside it."""
    return await _until(at, since, "rec_beam_rows", RATE * WIDTH)


async def _until(at: Stage, since: float, name: str, most: float) -> float:
    while time.monotonic() < since + 60:
        if (await at.replicas[0].metrics(at.client))[name] <= most:
            return time.monotonic() - since
        await asyncio.sleep(0.02)
    return float("inf")


async def overload(scene: Scene, length: float) -> list[Figure]:
    """Drill 9: five times the capacity offered; what is accepted is served in time, the rest is told when to return.

    The small checkpoint's beams are made wide, so that five times its capacity is what one load process can send. The
    first overload warms memory up; the second is judged.
    """
    wide = {} if os.environ.get("GROUNDREC_DRILL_CHECKPOINT") else {"beam_width": WIDE}
    async with scene.stage(max_inflight=MAX_INFLIGHT, max_waiting_rows=MAX_INFLIGHT * WIDE, **wide) as at:
        capacity = await _capacity(at)
        fresh = _resident(at.replicas[0])
        await _overloaded(at, capacity, length / 2)
        before = _resident(at.replicas[0])
        answers, late = await _overloaded(at, capacity, length)
        after = _resident(at.replicas[0])
    accepted = [answer for answer in answers if answer.status == 200]
    served = [answer for answer in accepted if answer.full]
    turned = [answer for answer in answers if answer.status != 200]
    return [
        at_least(f"goodput as a share of the capacity of {capacity:.0f}/s", len(served) / (length - 3) / capacity, 0.9),
        milliseconds("p99 of what was accepted", quantile_ms(accepted, 0.99), 1200 * MAX_INFLIGHT / capacity),
        milliseconds("of which the load itself was late, p99", late, 300 * MAX_INFLIGHT / capacity),
        Figure("degraded among the accepted", 1 - len(served) / max(len(accepted), 1), "at most", 0.01),
        at_least(
            "offered as a share of five times the capacity", len(answers) / (length - 3) / capacity / OVERLOAD, 0.9
        ),
        count("turned away with another status than 503", sum(answer.status != 503 for answer in turned)),
        count("turned away without Retry-After", sum(not answer.retry_after for answer in turned)),
        Figure("memory afterwards", after / before, "at most", 1.1, f" of before, {before / fresh:.2f} of the start"),
    ]


async def _overloaded(at: Stage, capacity: float, length: float) -> tuple[list[Answer], float]:
    """The answers of an overload but for its ends, and by how many ms at p99 its requests were sent late."""
    async with BackgroundLoad(at.urls, at.users, OVERLOAD * capacity) as load:
        start = time.monotonic()
        await asyncio.sleep(length)
        answers = load.between(start + 1, start + length - 2)
    return answers, 1000 * float(np.quantile([answer.late for answer in answers], 0.99)) if answers else float("nan")


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
