"""A replica killed with -9 again and again while items are posted to it (drill 16).

The engine is the plain torch one: what is at stake is the log, and 26 starts of vLLM would take half an hour. Some
kills hit a replica that has not become ready yet, while it replays the log or loads its model.
"""

import asyncio
import random
import time

from tests.faults.background_posts import BackgroundPosts
from tests.faults.figure import Figure, count
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage
from tests.faults.two_replicas import lost_items

KILLS = 20
KILLS_AT_START = 6
EARLIEST, LATEST = 1.0, 8.0  # seconds after a start
POSTS_A_SECOND = 20.0
LEVELS = 3


async def killed(scene: Scene, length: float) -> list[Figure]:
    """Drill 16: what was acknowledged is there, nothing is there in part, and the one that lived holds the same."""
    moments = random.Random(0)
    async with scene.stage(replicas=2, engine="torch") as at:
        victim, witness = at.replicas
        async with BackgroundPosts([victim.url], POSTS_A_SECOND, name="kept") as posts:
            for _ in range(KILLS):
                await asyncio.sleep(moments.uniform(0.3, 1.5))
                victim.kill()
                await victim.start()
            unready = [await _killed_at_start(at, victim, moments) for _ in range(KILLS_AT_START)]
            await victim.start()
            await asyncio.sleep(1.0)
        same = await at.same_hash()
        lost = [await lost_items(at, replica, posts.acknowledged) for replica in (victim, witness)]
        partial = await _partial(at, [post.item_id for post in posts.posts])
        return [
            count("kills", KILLS, KILLS),
            count("further kills before it was ready", sum(unready), KILLS_AT_START),
            Figure("items acknowledged", len(posts.acknowledged), "at least", KILLS, hard=True),
            count("acknowledged items lost", sum(lost)),
            count("items written in part", partial),
            count("equal catalogue hash on both", float(same), 1),
        ]


async def _killed_at_start(at: Stage, victim: Replica, moments: random.Random) -> bool:
    """Start it again and kill it somewhere on its way; whether it had not become ready, nor ended by itself."""
    victim.kill()
    victim.launch()
    end = time.monotonic() + moments.uniform(EARLIEST, LATEST)
    while time.monotonic() < end and victim.running.poll() is None:
        if await victim.readiness(at.client) == 200:
            victim.kill()
            return await _killed_at_start(at, victim, moments)
        await asyncio.sleep(0.05)
    alive = victim.running.poll() is None
    victim.kill()
    return alive


async def _partial(at: Stage, item_ids: list[str]) -> int:
    """Items that one replica has and the other has not, or that lack title or codes."""
    found = 0
    for item_id in item_ids:
        answers = [await at.client.get(f"{url}/items/{item_id}") for url in at.urls]
        if {answer.status_code for answer in answers} == {404}:
            continue
        if any(answer.status_code != 200 for answer in answers):
            found += 1
            continue
        row = answers[0].json()
        number = item_id.rpartition("-")[2]
        found += row["title"] != f"Film number {number}" or len(row["semantic_id"]) != LEVELS
    return found
