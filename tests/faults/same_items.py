"""Many posts of one item, and many items of one text, on two replicas (drills 12 and 13)."""

import asyncio
import json
from dataclasses import dataclass

import httpx

from tests.faults.figure import Figure, count
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage

POSTS = 200
AT_ONCE = 16
FIRST_YEAR = 20_000
# every post of drill 12 has a place, and patience enough for a busy machine
SETTINGS = {"replicas": 2, "drain_seconds": 3.0, "max_inflight": POSTS + 50, "items_timeout_ms": 30_000}


async def one_id(scene: Scene, length: float) -> list[Figure]:
    """Drill 12: of 200 concurrent posts of one id exactly one creates it, and both replicas give it one SID."""
    async with scene.stage(**SETTINGS) as at:
        item_id = "contested"
        posts = [await HeldPost.send(at.replicas[number % 2], item_id, "A contested film") for number in range(POSTS)]
        waiting = sum([(await replica.metrics(at.client))["rec_inflight"] for replica in at.replicas])
        answers = await asyncio.gather(*(post.complete() for post in posts))
        results = [result for status, result in answers if status == 200]
        await at.same_hash()
        sids = [(await at.client.get(f"{url}/items/{item_id}")).json()["semantic_id"] for url in at.urls]
        return [
            count("posts in flight at once, as the replicas count", waiting, POSTS),
            count("posts not answered with 200", POSTS - len(results)),
            count("posts that created it", results.count("created"), 1),
            count("posts that found it unchanged", results.count("unchanged"), POSTS - 1),
            count("different SIDs on the replicas", len(set(map(tuple, sids))), 1),
        ]


@dataclass(frozen=True, slots=True)
class HeldPost:
    """A POST of an item that lacks its last byte: it has its place in the service and waits, like all the others."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rest: bytes

    @classmethod
    async def send(cls, replica: Replica, item_id: str, title: str) -> "HeldPost":
        """Send all but the last byte."""
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
        body = json.dumps({"item_id": item_id, "title": title}).encode()
        head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
        writer.write(f"POST /items HTTP/1.1\r\n{head}\r\n\r\n".encode() + body[:-1])
        await writer.drain()
        return cls(reader, writer, body[-1:])

    async def complete(self) -> tuple[int, str]:
        """Send the last byte; the answer's status, and what became of the item."""
        self.writer.write(self.rest)
        head, _, body = (await self.reader.read()).partition(b"\r\n\r\n")
        self.writer.close()
        status = int(head.split(b" ", 2)[1]) if head else 0
        return status, json.loads(body)["items"][0]["result"] if status == 200 else ""


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
