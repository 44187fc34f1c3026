"""Services over a real Redis: concurrency, restarts, two replicas, and Redis in trouble."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from service.app import Parts
from service.errors import StartupError
from service.model.checkpoint import Checkpoint
from service.stores.base import HistoryEvent
from service.stores.redis_history import RedisHistory
from tests.redis_server import RedisServer
from tests.service_doubles import Running, ids, running

REAL = Parts()


async def mapping(service: Running) -> dict[str, list[int]]:
    answer = await service.recommend(history=["item-1"], num_results=100)
    return {item["item_id"]: item["semantic_id"] for item in answer["items"]}


async def until(promise: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not await promise():
            await asyncio.sleep(0.01)


async def test_50_concurrent_posts_of_one_id_to_two_replicas_make_one_item_with_one_sid(
    checkpoint: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as one,
        running(checkpoint, REAL, redis_url=redis_url) as two,
    ):
        posts = [service.item(item_id="new", title="like Title 7") for service in (one, two) for _ in range(25)]
        results = await asyncio.gather(*posts)
        assert sorted(result["result"] for result in results) == ["created"] + ["unchanged"] * 49
        assert len({tuple(result["semantic_id"]) for result in results}) == 1


async def test_200_items_of_one_text_are_200_items_all_recommendable_and_alike_on_both_replicas(
    checkpoint: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as one,
        running(checkpoint, REAL, redis_url=redis_url) as two,
    ):
        bodies = [{"item_id": f"same-{n}", "title": "like Title 7"} for n in range(200)]
        halves = (one.post("/items", bodies[:100]), two.post("/items", bodies[100:]))
        results = [item for answer in await asyncio.gather(*halves) for item in answer["items"]]
        assert {result["result"] for result in results} == {"created"}
        wanted = {result["item_id"]: result["semantic_id"] for result in results}
        for service in (one, two):

            async def complete(service: Running = service) -> bool:
                return await posted_mapping(service) == wanted

            await until(complete, 1.0)


async def posted_mapping(service: Running) -> dict[str, list[int]]:
    """All items that are not the checkpoint's, over as many pages as it takes."""
    excluded = [f"item-{n}" for n in range(60)]
    found: dict[str, list[int]] = {}
    while page := (await service.recommend(history=["item-1"], num_results=100, exclude_item_ids=[*excluded, *found]))[
        "items"
    ]:
        found |= {item["item_id"]: item["semantic_id"] for item in page}
    return found


async def test_an_item_posted_to_one_replica_is_recommended_by_the_other_within_a_second(
    checkpoint: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as one,
        running(checkpoint, REAL, redis_url=redis_url) as two,
    ):
        await one.item(item_id="new", title="like Title 7")

        async def shown() -> bool:
            return "new" in await mapping(two)

        await until(shown, 1.0)


async def test_replicas_that_hold_the_same_items_report_one_hash_which_every_change_moves(
    checkpoint: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as one,
        running(checkpoint, REAL, redis_url=redis_url) as two,
    ):
        hashes = [(await one.client.get("/model")).json()["catalog_hash"]]
        for where, title in ((one, "like Title 7"), (two, "like Title 8")):
            await where.item(item_id="new", title=title)
            told = (await where.client.get("/model")).json()

            async def alike(told: dict[str, Any] = told) -> bool:
                reports = [(await each.client.get("/model")).json() for each in (one, two)]
                return all(report["catalog_version"] == told["catalog_version"] for report in reports) and all(
                    report["catalog_hash"] == told["catalog_hash"] for report in reports
                )

            await until(alike, 1.0)
            hashes.append(told["catalog_hash"])
        assert len(set(hashes)) == 3 and all(len(value) == 32 for value in hashes)
        assert (await one.client.delete("/items/new")).status_code == 200
        assert (await one.client.get("/model")).json()["catalog_hash"] == hashes[0]


async def test_a_restart_replays_the_log_to_the_same_catalogue(checkpoint: Checkpoint, redis_url: str) -> None:
    async with running(checkpoint, REAL, redis_url=redis_url) as service:
        await service.post("/items", [{"item_id": f"new-{n}", "title": f"like Title {n}"} for n in range(20)])
        await service.item(item_id="new-3", title="like Title 40")
        before, model = await mapping(service), (await service.client.get("/model")).json()
    async with running(checkpoint, REAL, redis_url=redis_url) as service:
        assert await mapping(service) == before
        assert (await service.client.get("/model")).json()["catalog_hash"] == model["catalog_hash"]
        assert (await service.item(item_id="new-3", title="like Title 40"))["result"] == "unchanged"


async def test_acknowledged_items_survive_a_killed_redis(checkpoint: Checkpoint, own_redis: RedisServer) -> None:
    async with running(checkpoint, REAL, redis_url=own_redis.url) as service:
        await service.item(item_id="new", title="like Title 7")
        before = await mapping(service)
    own_redis.kill()
    own_redis.start()
    async with running(checkpoint, REAL, redis_url=own_redis.url) as service:
        assert await mapping(service) == before and "new" in before


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
async def test_without_redis_recommendations_go_on_degraded_and_posts_say_503(
    checkpoint: Checkpoint, own_redis: RedisServer, trouble: str
) -> None:
    histories = RedisHistory(own_redis.url, timeout_seconds=1, max_items=9, ttl_days=1)
    await histories.append([("42", HistoryEvent("item-7", 1.0))])
    await histories.close()
    async with running(checkpoint, REAL, redis_url=own_redis.url) as service:
        known = await service.recommend(user_id="42")
        assert known["degraded"] is False and known["items"][0]["source"] == "model"
        own_redis.kill() if trouble == "killed" else own_redis.freeze()
        for user in ("42", "43"):
            answer = await service.recommend(user_id=user)
            assert answer["degraded_reasons"] == ["history_unavailable"] and len(answer["items"]) == 10
            assert answer["took_ms"] < 500
        assert ids(await service.recommend(user_id="42")) == ids(known), "the last known history still serves"
        assert (await service.recommend(history=["item-7"]))["degraded"] is False
        refused = await service.client.post("/items", json={"item_id": "a", "title": "b"})
        assert refused.status_code == 503 and refused.json()["type"].endswith(":storage-unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await service.client.get("/health/ready")).status_code == 200
        own_redis.start() if trouble == "killed" else own_redis.thaw()

        async def healthy() -> bool:
            answer = await service.recommend(user_id="42")
            posted = await service.client.post("/items", json={"item_id": "late", "title": "like Title 7"})
            return not answer["degraded"] and posted.status_code == 200 and "late" in await mapping(service)

        await until(healthy, 10)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--appendonly", "no", "--save", ""), "persistence is off"),
        (("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"), "may evict the item log"),
    ],
)
async def test_a_redis_that_could_lose_the_log_is_refused_unless_told(
    checkpoint: Checkpoint, tmp_path: Path, options: tuple[str, ...], fault: str
) -> None:
    server = RedisServer(tmp_path, *options).start()
    try:
        with pytest.raises(StartupError, match=f"{fault}.*--allow-volatile"):
            async with running(checkpoint, REAL, redis_url=server.url):
                pass
        async with running(checkpoint, REAL, redis_url=server.url, allow_volatile=True) as service:
            assert (await service.item(item_id="new", title="b"))["result"] == "created"
    finally:
        server.kill()


async def test_a_redis_that_hides_its_configuration_is_accepted_with_a_warning(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path, "--appendonly", "yes", "--rename-command", "CONFIG", "").start()
    try:
        with capture_logs() as lines:
            async with running(checkpoint, REAL, redis_url=server.url) as service:
                assert (await service.item(item_id="new", title="b"))["result"] == "created"
    finally:
        server.kill()
    assert "forbids CONFIG GET" in next(line["detail"] for line in lines if line["event"] == "storage_may_lose_items")


async def test_what_started_is_stopped_again_when_the_rest_cannot_start(checkpoint: Checkpoint) -> None:
    with pytest.raises(StartupError, match="Redis does not answer"):
        async with running(checkpoint, REAL, redis_url="redis://:secret@127.0.0.1:9/0"):
            pass
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
