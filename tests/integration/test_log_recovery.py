"""Two replicas over one log that is compacted, flushed, set back and killed: they end alike, and nothing is lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from service.catalog import Catalog
from service.catalog_sync import CatalogSync
from service.compaction import Compaction
from service.errors import StorageError
from service.grounder import Grounder
from service.ingest import Ingest
from service.metrics import Metrics
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.semantic_ids import Sid
from service.model.smoothing import SiblingMixer
from service.siblings import SiblingSums
from service.stores.item_log import LOG_START, ItemLog, Restoration, SnapshotHeader
from service.stores.memory_items import MemoryItemLog
from service.stores.redis_items import RedisItemLog
from tests.redis_server import RedisServer
from tests.service_doubles import FakeEncoder, FakeEngine

EVERY = 15


@dataclass
class Replica:
    """One follower of a log with its own engine, and a way to post to it."""

    sync: CatalogSync
    ingest: Ingest
    engine: FakeEngine
    metrics: Metrics
    task: "asyncio.Task[None]"

    @property
    def catalog(self) -> Catalog:
        return self.sync.current

    async def post(self, *items: ItemRecord) -> list[str]:
        return [result.result for result in await self.ingest.post(items)]


@asynccontextmanager
async def replica(checkpoint: Checkpoint, log: ItemLog, every: int = EVERY) -> AsyncIterator[Replica]:
    engine, metrics = FakeEngine(checkpoint), Metrics()
    grounder = Grounder(checkpoint, FakeEncoder(checkpoint))
    tensors = checkpoint.catalog_tensors()
    siblings = SiblingSums(SiblingMixer(tensors.codes_NL, tensors.embedding_NE, checkpoint.space.codes, 0.1))
    catalog = Catalog.from_checkpoint(checkpoint)
    compaction = Compaction(log, metrics, every)
    sync = CatalogSync(catalog, checkpoint.space, log, engine, grounder, siblings, metrics, compaction=compaction)
    await sync.replay()
    task = asyncio.create_task(sync.run())
    try:
        yield Replica(sync, Ingest(sync, grounder, log, metrics, 5000), engine, metrics, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await sync.close()
        grounder.close()
        assert task.cancelled() or task.exception() is None


def film(number: int, like: int = 7, word: str = "") -> ItemRecord:
    return ItemRecord(f"new-{number}", f"Film {number} {word} like Title {like}", "", {"part": number})


async def until(promise: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not promise():
            await asyncio.sleep(0.01)


def contents(catalog: Catalog) -> dict[str, tuple[Sid, str, tuple[str, ...]]]:
    return {item.item.item_id: (item.sid, item.item.title, catalog.bucket(item.sid)) for item, _ in catalog.popular()}


def assert_alike(*replicas: Replica) -> None:
    """Equal catalogues, and each engine knows exactly the SIDs of its catalogue."""
    first = replicas[0].catalog
    for each in replicas:
        catalog = each.catalog
        assert (catalog.version, catalog.catalog_hash) == (first.version, first.catalog_hash)
        assert contents(catalog) == contents(first)
        assert each.engine.versions[catalog.version] == {item.sid for item, _ in catalog.popular()}


@pytest.fixture(params=["redis", "memory"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[ItemLog]:
    store: ItemLog = MemoryItemLog()
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        store = RedisItemLog(url, fingerprint="abc", shown_url=url)
    yield store
    await store.close()


def flush(log: ItemLog, request: pytest.FixtureRequest) -> None:
    if isinstance(log, MemoryItemLog):
        log.flush()
        return
    with redis.Redis(port=request.getfixturevalue("redis_server").port) as client:
        client.flushall()


async def test_a_flushed_log_is_republished_and_both_replicas_go_on(
    checkpoint: Checkpoint, log: ItemLog, request: pytest.FixtureRequest
) -> None:
    async with replica(checkpoint, log) as one, replica(checkpoint, log) as two:
        await one.post(*(film(number) for number in range(20)))
        await one.ingest.delete("item-3")
        await until(lambda: two.catalog.version == one.catalog.version)
        before = contents(one.catalog)
        flush(log, request)
        generation = one.sync.generation
        await until(lambda: one.sync.generation == two.sync.generation != generation)
        assert contents(one.catalog) == contents(two.catalog) == before
        assert one.metrics.registry.get_sample_value("rec_item_log_lost_total") == 1
        assert await two.post(film(3), film(99)) == ["unchanged", "created"]
        await until(lambda: one.catalog.version == two.catalog.version)
        assert_alike(one, two)
    async with replica(checkpoint, log) as three:
        assert set(contents(three.catalog)) == set(before) | {"new-99"}


async def test_a_fresh_replica_that_meets_a_flushed_redis_first_does_not_make_the_others_forget(
    checkpoint: Checkpoint, log: ItemLog, request: pytest.FixtureRequest
) -> None:
    async with replica(checkpoint, log) as old:
        await old.post(*(film(number) for number in range(5)))
        before = contents(old.catalog)
        old.task.cancel()
        await asyncio.wait([old.task])
        flush(log, request)
        async with replica(checkpoint, log) as fresh:
            assert await fresh.post(film(1, word="newer"), film(77)) == ["created", "created"]
            old.task = asyncio.create_task(old.sync.run())
            await until(lambda: old.catalog.catalog_hash == fresh.catalog.catalog_hash)
            assert set(contents(fresh.catalog)) == set(before) | {"new-77"}
            assert "newer" in contents(old.catalog)["new-1"][1], "what was said after the loss stands"
            await until(lambda: old.catalog.version == fresh.catalog.version)
            assert_alike(old, fresh)


async def test_a_log_that_was_set_back_gets_what_it_lost_once(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    async with replica(checkpoint, log) as one, replica(checkpoint, log) as two:
        await one.post(film(1), film(2))
        await until(lambda: two.catalog.version == 2)
        backup = replace_state(log)
        await one.post(film(3), film(2, word="second"))
        await until(lambda: two.catalog.version == 4)
        backup()
        await until(lambda: min(one.catalog.version, two.catalog.version) > 4)
        await until(lambda: one.catalog.version == two.catalog.version)
        assert_alike(one, two)
        assert {"new-1", "new-2", "new-3"} <= set(contents(one.catalog))
        assert "second" in contents(one.catalog)["new-2"][1]
        page = await log.read_after(LOG_START, 100, 0)
        assert sorted(entry.item_id for entry in page.entries if entry.version > 4 and entry.op == "put") == [
            "new-2",
            "new-3",
        ]


def replace_state(log: MemoryItemLog) -> Callable[[], None]:
    """Remember the log as it is; the function sets it back."""
    kept: dict[str, Any] = {
        name: value.copy() if hasattr(value, "copy") else value
        for name, value in vars(log).items()
        if name in ("_state", "_entries", "_claims", "_held", "_chunks")
    }
    return lambda: vars(log).update(kept)


async def test_a_replica_that_lags_behind_what_was_dropped_starts_from_a_snapshot_again(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    async with replica(checkpoint, log) as one, replica(checkpoint, log) as two:
        await until(lambda: bool(one.sync.generation))
        two.task.cancel()
        await asyncio.wait([two.task])
        for number in range(80):
            await one.post(film(number % 30, like=number % 50))
        await one.sync.close()
        state = await log.state()
        assert state is not None and len(state.snapshots) == 3
        first = (await log.read_after(LOG_START, 1, 0)).entries
        assert not first or first[0].previous > 0, "the beginning of the log is gone"
        two.task = asyncio.create_task(two.sync.run())
        await until(lambda: two.catalog.version == one.catalog.version)
        assert_alike(one, two)
        assert two.metrics.registry.get_sample_value("rec_item_log_lost_total") == 0, "lagging is no loss"


async def test_a_start_uses_the_newest_snapshot_that_is_whole(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    async with replica(checkpoint, log) as one:
        for number in range(4 * EVERY + 5):
            await one.post(film(number))
            await one.sync.close()
        state = await log.state()
        assert state is not None and len(state.snapshots) == 3
        log._chunks[state.snapshots[0].key] = [b"damaged"]
        async with replica(checkpoint, log) as two:
            assert_alike(one, two)
        for header in state.snapshots:
            log._chunks[header.key] = [b"damaged"]
        with pytest.raises(StorageError, match="follows version"):
            async with replica(checkpoint, log):
                pass


@pytest.mark.parametrize("seed", range(6))
async def test_replicas_end_alike_whatever_happened(
    checkpoint: Checkpoint, log: ItemLog, request: pytest.FixtureRequest, seed: int
) -> None:
    """Create, update, delete, roll back, compact, flush, restart: equal hash and items, nothing acknowledged lost."""
    chance, wanted = random.Random(seed), dict[str, str | None]()
    async with replica(checkpoint, log) as one:
        for _ in range(3):
            async with replica(checkpoint, log) as two:
                for _ in range(25):
                    await any_deed(chance, chance.choice([one, two]), log, wanted)
                if chance.random() < 0.5:
                    await flushed(log, request, one, two)
                await same_version(one, two)
                assert_alike(one, two)
        async with replica(checkpoint, log) as fresh:
            assert_alike(one, fresh)
        found = contents(one.catalog)
        for item_id, title in wanted.items():
            assert (found[item_id][1] if item_id in found else None) == title, item_id


async def same_version(one: Replica, two: Replica) -> None:
    await until(lambda: one.catalog.version == two.catalog.version)


async def flushed(log: ItemLog, request: pytest.FixtureRequest, one: Replica, two: Replica) -> None:
    await same_version(one, two)
    generation = one.sync.generation
    flush(log, request)
    await until(lambda: one.sync.generation == two.sync.generation != generation)


async def any_deed(chance: random.Random, where: Replica, log: ItemLog, wanted: dict[str, str | None]) -> None:
    number = chance.randint(0, 12)
    item_id = f"new-{number}" if number < 10 else f"item-{number}"
    if chance.random() < 0.25:
        await where.ingest.delete(item_id)
        wanted[item_id] = None
        return
    if chance.random() < 0.15 and (entry := where.catalog.log_state().get(item_id)) and entry.item:
        state = await log.state()
        assert state is not None
        claim = (await log.append(state.generation, [Restoration(entry, state.version)]))[0]
        if claim.version:
            await where.sync.wait_for(claim.version)
            wanted[item_id] = entry.item.title
        return
    item = ItemRecord(item_id, f"{chance.choice('abc')} like Title {chance.randint(0, 9)}", "", {})
    await where.post(item)
    wanted[item_id] = item.title


async def test_acknowledged_items_survive_kills_of_redis_amid_posts(
    checkpoint: Checkpoint, own_redis: RedisServer
) -> None:
    log = RedisItemLog(own_redis.url, fingerprint="abc", shown_url=own_redis.url)
    acknowledged: set[str] = set()
    async with replica(checkpoint, log) as one:
        for round_ in range(5):
            before = len(acknowledged)
            posting = asyncio.create_task(post_until_refused(one, round_, acknowledged))
            await until(lambda before=before: len(acknowledged) >= before + 5, 20)  # type: ignore[misc]
            await asyncio.to_thread(own_redis.kill)
            await posting
            await asyncio.to_thread(own_redis.start)
        async with replica(checkpoint, log) as fresh:
            assert acknowledged <= set(contents(fresh.catalog)) and len(acknowledged) >= 25
            await until(lambda: one.catalog.version == fresh.catalog.version)
            assert_alike(one, fresh)
    await log.close()


async def post_until_refused(where: Replica, round_: int, acknowledged: set[str]) -> None:
    for number in range(10_000):
        item = film(1000 * round_ + number)
        try:
            await where.post(item)
        except StorageError:
            if number:
                return
            await asyncio.sleep(0.02)
        else:
            acknowledged.add(item.item_id)


async def test_200_posts_of_one_id_to_two_replicas_make_one_item(checkpoint: Checkpoint, log: ItemLog) -> None:
    async with replica(checkpoint, log) as one, replica(checkpoint, log) as two:
        posts = [where.ingest.post([film(1)]) for where in (one, two) for _ in range(100)]
        results = [result for part in await asyncio.gather(*posts) for result in part]
        assert sorted(result.result for result in results) == ["created"] + ["unchanged"] * 199
        assert len({result.semantic_id for result in results}) == 1
        await until(lambda: one.catalog.version == two.catalog.version == 1)
        assert_alike(one, two)


async def test_republishing_does_not_wait_for_one_who_died_in_the_middle(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    async with replica(checkpoint, log) as one:
        await one.post(film(1))
        log.flush()
        assert await log.republish(SnapshotHeader(0, LOG_START, "", 0, ""), [])  # by one who knew nothing
        await until(lambda: one.catalog.version > 1)
        assert "new-1" in contents(one.catalog)
        async with replica(checkpoint, log) as two:
            assert_alike(one, two)


async def test_what_deleted_items_said_does_not_pile_up_in_memory(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.catalog.WASTED_ROWS", 20)
    log, trained = MemoryItemLog(), len(checkpoint.items())
    async with replica(checkpoint, log, 10_000) as one, replica(checkpoint, log, 10_000) as two:
        await one.post(film(1000))
        for number in range(200):
            await one.post(film(number))
            assert await one.ingest.delete(f"new-{number}")
        await until(lambda: two.catalog.version == one.catalog.version)
        assert_alike(one, two)
        for each in (one, two):
            assert each.catalog._rows <= 3 * trained + 5, "no more dead rows than items"
            assert [item.item.item_id for item in each.catalog.newest()] == ["new-1000"]
