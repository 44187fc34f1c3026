"""Two replicas that follow one log: how soon the other has an item, and a rolling restart (drills 14 and 15)."""

import asyncio
import time

import httpx
import numpy as np

from tests.faults.background_load import BackgroundLoad, failed
from tests.faults.background_posts import BackgroundPosts
from tests.faults.figure import Figure, count, seconds
from tests.faults.ready_urls import ReadyUrls
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage

RATE = 3.0
ITEMS_A_SECOND = 2.0
POSTED = 1000
FIRST_YEAR = 10_000  # an attribute by which one posted item can be asked for
SETTINGS = {"replicas": 2, "drain_seconds": 3.0}


async def visible(scene: Scene, length: float) -> list[Figure]:
    """Drill 14: from the 2xx of one replica to a recommendation of the other that has the item."""
    async with scene.stage(**SETTINGS) as at, BackgroundLoad(at.urls, at.users, RATE) as load:
        first, second = at.replicas
        took = []
        for number in range(int(length * ITEMS_A_SECOND)):
            here, there = (first, second) if number % 2 else (second, first)
            took.append(await _until_recommended(at, here, there, number))
        return [
            count("failed recommendations", failed(load.answers)),
            count("items that the other never recommended", sum(value == float("inf") for value in took)),
            seconds("p50 from 2xx to recommended by the other", float(np.quantile(took, 0.5)), 1.0),
            seconds("p99", float(np.quantile(took, 0.99)), 1.0),
        ]


async def _until_recommended(at: Stage, here: Replica, there: Replica, number: int) -> float:
    item_id, year = f"seen-{number}", FIRST_YEAR + number
    (await at.post(here, item_id, f"Film number {number}", attributes={"year": year})).raise_for_status()
    known = time.monotonic()
    body = {"history": ["item-1", "item-2"], "filter": {"min": {"year": year}, "max": {"year": year}}}
    while time.monotonic() < known + 30:
        answer = await at.client.post(f"{there.url}/recommend", json=body)
        if answer.status_code == 200 and item_id in [item["item_id"] for item in answer.json()["items"]]:
            return time.monotonic() - known
        await asyncio.sleep(0.01)
    return float("inf")


async def rolling_restart(scene: Scene, length: float) -> list[Figure]:
    """Drill 15: replicas restarted in turn while 1,000 items are posted through a balancer that probes."""
    async with scene.stage(**SETTINGS) as at, ReadyUrls(at) as ready:
        posting = BackgroundPosts(ready, POSTED / length, POSTED)
        async with posting as posts, BackgroundLoad(ready, at.users, RATE) as load:
            codes = []
            for replica in at.replicas:
                codes.append(await replica.stop())
                await replica.start()
                await asyncio.sleep(1.0)
            await posts.all_sent()
        same = await at.same_hash()
        lost = [await lost_items(at, replica, posts.acknowledged) for replica in at.replicas]
        return [
            count("items acknowledged", len(posts.acknowledged), POSTED),
            count("failed posts", sum(post.status != 200 for post in posts.posts)),
            count("failed recommendations", failed(load.answers)),
            count("restarts that ended with exit code 0", codes.count(0), len(at.replicas)),
            count("acknowledged items lost", sum(lost)),
            count("equal catalogue hash on both", float(same), 1),
        ]


async def lost_items(at: Stage, replica: Replica, item_ids: list[str]) -> int:
    """How many of them a replica does not have."""
    room = asyncio.Semaphore(8)

    async def has(item_id: str) -> bool:
        async with room:
            try:
                return (await at.client.get(f"{replica.url}/items/{item_id}")).status_code == 200
            except httpx.HTTPError:
                return False

    return (await asyncio.gather(*map(has, item_ids))).count(False)
