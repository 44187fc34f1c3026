"""Many posts of one item, and many items of one text, on two replicas (drills 12 and 13)."""

import asyncio

import httpx

from tests.faults.figure import Figure, count
from tests.faults.scene import Scene
from tests.faults.stage import Stage

POSTS = 200
AT_ONCE = 16
FIRST_YEAR = 20_000
SETTINGS = {"replicas": 2, "drain_seconds": 3.0}


async def one_id(scene: Scene, length: float) -> list[Figure]:
    """Drill 12: of 200 concurrent posts of one id exactly one creates it, and both replicas give it one SID."""
    async with scene.stage(**SETTINGS) as at:
        ids = "contested"
        answers = await _all(at, [(ids, "A contested film", {})] * POSTS)
        results = [answer.json()["items"][0]["result"] for answer in answers if answer.status_code == 200]
        await at.same_hash()
        sids = [(await at.client.get(f"{url}/items/{ids}")).json()["semantic_id"] for url in at.urls]
        return [
            count("posts not answered with 200", POSTS - len(results)),
            count("posts that created it", results.count("created"), 1),
            count("posts that found it unchanged", results.count("unchanged"), POSTS - 1),
            count("different SIDs on the replicas", len(set(map(tuple, sids))), 1),
        ]


async def one_text(scene: Scene, length: float) -> list[Figure]:
    """Drill 13: 200 items of the same text are 200 items: each recommendable, the same on both replicas."""
    async with scene.stage(**SETTINGS) as at:
        wanted = [(f"alike-{n}", "The very same film", {"year": FIRST_YEAR + n}) for n in range(POSTS)]
        answers = await _all(at, wanted)
        same = await at.same_hash()
        found = [await _recommendable(at, url) for url in at.urls]
        sids = [await _sids(at, url) for url in at.urls]
        created = [a for a in answers if a.status_code == 200 and a.json()["items"][0]["result"] == "created"]
        return [
            count("items created", len(created), POSTS),
            count("recommendable by themselves, on the replica that has fewer", min(found), POSTS),
            count("items with different SIDs on the replicas", sum(a != b for a, b in zip(*sids, strict=True))),
            count("equal catalogue hash on both", float(same), 1),
        ]


async def _all(at: Stage, items: list[tuple[str, str, dict[str, int]]]) -> list[httpx.Response]:
    """Post them to the replicas in turn, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def post(number: int) -> httpx.Response:
        item_id, title, attributes = items[number]
        async with room:
            return await at.post(at.replicas[number % 2], item_id, title, attributes=attributes)

    return await asyncio.gather(*map(post, range(len(items))))


async def _recommendable(at: Stage, url: str) -> int:
    """How many of them come back when a filter leaves only that one."""
    found = 0
    for number in range(POSTS):
        year = FIRST_YEAR + number
        body = {"history": ["item-1"], "filter": {"min": {"year": year}, "max": {"year": year}}}
        answer = (await at.client.post(f"{url}/recommend", json=body)).json()
        found += [item["item_id"] for item in answer["items"]] == [f"alike-{number}"]
    return found


async def _sids(at: Stage, url: str) -> list[tuple[int, ...]]:
    rows = [(await at.client.get(f"{url}/items/alike-{number}")).json() for number in range(POSTS)]
    return [tuple(row["semantic_id"]) for row in rows]
