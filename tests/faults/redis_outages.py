"""Redis killed, frozen, full and flushed under a replica that goes on recommending (drills 1, 2, 4, 5)."""

import asyncio
import time
from collections.abc import Callable

import redis

from tests.faults.background_load import BackgroundLoad, failed, quantile_ms
from tests.faults.figure import Figure, count, milliseconds, seconds
from tests.faults.scene import Scene
from tests.faults.stage import Stage

RATE = 5.0
AFTER_SECONDS = 5.0
EXTRA_MS = 60.0


async def killed(scene: Scene, length: float) -> list[Figure]:
    """Drill 1: no recommendation fails; answers say that they are degraded, and soon after its return no longer."""

    def back(at: Stage) -> None:
        at.redis.start()

    async with scene.stage() as at:
        figures, _, _ = await _outage(at, length, at.redis.kill, lambda: back(at))
        return figures


async def frozen(scene: Scene, length: float) -> list[Figure]:
    """Drill 2: the same with a Redis that takes connections and never answers; nobody waits for it long."""
    async with scene.stage() as at:
        figures, base, during = await _outage(at, length, at.redis.freeze, at.redis.thaw)
        return [*figures, milliseconds(f"p99 while it hangs (before: {base:.0f} ms)", during, base + EXTRA_MS)]


async def _outage(
    at: Stage, length: float, breaks: Callable[[], None], mends: Callable[[], None]
) -> tuple[list[Figure], float, float]:
    """The figures that both have, and p99 in ms before and during."""
    async with BackgroundLoad(at.urls, at.users, RATE) as load:
        await asyncio.sleep(length)
        breaks()
        broken = time.monotonic()
        degraded_after = await load.until(lambda answer: answer.degraded, broken)
        await asyncio.sleep(length)
        await asyncio.to_thread(mends)
        mended = time.monotonic()
        await asyncio.sleep(AFTER_SECONDS)
    rest = load.between(mended, float("inf"))
    late = [answer.due - mended for answer in rest if answer.degraded]
    base, during = load.between(0, broken), load.between(broken, mended)
    figures = [
        count("failed recommendations", failed(load.answers)),
        # Redis has 50 ms to answer, which a machine busy with other work may miss
        Figure("degraded before", sum(answer.degraded for answer in base) / len(base), "at most", 0.02),
        seconds("first degraded answer after", degraded_after, 1.0),
        seconds("last degraded answer after its return", max(late, default=0.0), 2.0),
    ]
    return figures, quantile_ms(base, 0.99), quantile_ms(during, 0.99)


async def full(scene: Scene, length: float) -> list[Figure]:
    """Drill 4: recommendations as ever; a posted item is refused by name and is not half there; later it is taken."""
    async with scene.stage() as at, BackgroundLoad(at.urls, at.users, RATE) as load:
        await asyncio.sleep(1.0)
        with redis.Redis(port=at.redis.port) as client:
            client.config_set("maxmemory", "1kb")  # less than an empty one holds, however much the service does
            refused = await at.post(at.replicas[0], "no-room", "A film without room")
            missing = await at.client.get(f"{at.urls[0]}/items/no-room")
            await asyncio.sleep(length)
            client.config_set("maxmemory", "0")
        taken = await at.post(at.replicas[0], "no-room", "A film without room")
    slug = str(refused.json().get("type", "")).rpartition("/")[2].rpartition(":")[2]
    return [
        count("failed recommendations", failed(load.answers)),
        count("degraded recommendations", sum(answer.degraded for answer in load.answers)),
        count("status of POST /items", refused.status_code, 503),
        count("refused as storage-full", float(slug == "storage-full"), 1),
        count("status of the refused item", missing.status_code, 404),
        count("status once there is room", taken.status_code, 200),
    ]


async def flushed(scene: Scene, length: float) -> list[Figure]:
    """Drill 5: served from memory, told by a metric, and the item log is written again from memory."""
    async with scene.stage() as at, BackgroundLoad(at.urls, at.users, RATE) as load:
        for number in range(5):
            (await at.post(at.replicas[0], f"kept-{number}", f"Film number {number}")).raise_for_status()
        before, alarms = (await at.hashes())[0], await _alarms(at)
        with redis.Redis(port=at.redis.port) as client:
            client.flushall()
            lost = time.monotonic()
            while not list(client.scan_iter("groundrec:*:meta")):  # names the snapshot that holds everything
                if time.monotonic() > lost + 60:
                    raise TimeoutError("the item log was not written again within 60 s")
                await asyncio.sleep(0.01)
        written = time.monotonic() - lost
        await asyncio.sleep(length)
        alarms = await _alarms(at) - alarms
        after = (await at.hashes())[0]
        await at.replicas[0].stop()
        await at.replicas[0].start()
        kept = [(await at.client.get(f"{at.urls[0]}/items/kept-{n}")).status_code for n in range(5)]
        same = float((await at.hashes())[0] == after == before)
    answers = load.between(0, lost + length)
    return [
        count("failed recommendations", failed(answers)),
        seconds("item log written again after", written, 5.0),
        count("losses told by rec_item_log_lost", alarms, 1),
        count("items kept over a restart", kept.count(200), 5),
        count("same catalogue hash before, after, restarted", same, 1),
    ]


async def _alarms(at: Stage) -> float:
    return (await at.replicas[0].metrics(at.client))["rec_item_log_lost_total"]
