"""The Redis master killed under Sentinels while items are posted (drill 3)."""

import asyncio
import time

from tests.faults.background_load import BackgroundLoad, failed
from tests.faults.background_posts import BackgroundPosts, Post
from tests.faults.figure import Figure, count, seconds
from tests.faults.scene import Scene
from tests.faults.two_replicas import lost_items
from tests.redis_topologies import watched

LOAD_RATE = 5.0
POST_RATE = 10.0
AFTER_SECONDS = 6.0


async def failed_over(scene: Scene, length: float) -> list[Figure]:
    """Drill 3: recommendations go on; what was acknowledged before, during and after is kept by the new master.

    Redis replicates behind its acknowledgement; what the old master alone had, replicas of the service give back.
    """
    with watched(scene.folder()) as redises:
        async with scene.stage(redis_url=redises.url) as at:
            load, posting = BackgroundLoad(at.urls, at.users, LOAD_RATE), BackgroundPosts(at.urls, POST_RATE)
            async with load, posting as posts:
                await asyncio.sleep(length)
                redises.master.kill()
                killed = time.monotonic()
                await asyncio.to_thread(redises.wait_for_failover)
                elected = time.monotonic()
                await asyncio.sleep(AFTER_SECONDS)
            at_once = await lost_items(at, at.replicas[0], posts.acknowledged)
            code = await at.replicas[0].stop()
            await at.replicas[0].start()
            later = await lost_items(at, at.replicas[0], posts.acknowledged)
        await scene.clear()
    written = [post.at for post in posts.posts if post.due > killed and post.status == 200]
    return [
        count("failed recommendations", failed(load.answers)),
        count("acknowledged items lost", at_once),
        count("acknowledged items lost, read anew from the new master", later),
        count("posts answered otherwise than 200 or 503", sum(not _fair(post) for post in posts.posts)),
        seconds("new master elected after (Sentinel waits 1 s)", elected - killed, 15.0),
        seconds("first item acknowledged after the kill", min(written, default=float("inf")) - killed, 15.0),
        seconds("last degraded answer after the election", _degraded_until(load, elected), 2.0),
        count("exit code of the restart", code),
    ]


def _fair(post: Post) -> bool:
    return post.status in {200, 503}


def _degraded_until(load: BackgroundLoad, since: float) -> float:
    late = [answer.due - since for answer in load.between(since, float("inf")) if answer.degraded]
    return max(late, default=0.0)
