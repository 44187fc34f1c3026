"""Histories, feedback and the item log behind Sentinels and in a cluster, with real servers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.errors import SettingsError, StorageError
from service.model.checkpoint import ItemRecord
from service.stores.base import HistoryEvent
from service.stores.feedback import FeedbackEvent
from service.stores.item_log import LOG_START, ItemDraft, SnapshotHeader
from service.stores.redis_connection import connect
from service.stores.redis_feedback import RedisFeedback
from service.stores.redis_history import RedisHistory
from service.stores.redis_items import RedisItemLog
from tests.redis_topologies import Watched, cluster, watched


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as made:
        yield made


def histories(url: str) -> RedisHistory:
    return RedisHistory(url, timeout_seconds=2.0, max_items=5, ttl_days=2)


async def test_in_a_cluster_one_call_reaches_the_users_of_all_nodes(cluster_url: str) -> None:
    store = histories(cluster_url)
    users = [f"user-{n}" for n in range(50)]
    posted = [(user, HistoryEvent(f"item-{n}", float(n), f"e-{n}")) for user in users for n in range(7)]
    assert await store.append(posted) == [True] * 350
    assert await store.append(posted[-5:]) == [False] * 5
    assert await store.recent(users, 3) == [["item-4", "item-5", "item-6"]] * 50
    assert [event.item_id for event in await store.events("user-7", 9)] == [f"item-{n}" for n in range(2, 7)]
    assert await store.erase("user-7") is True
    assert await store.recent(["user-7", "user-8"], 1) == [[], ["item-6"]]
    await store.close()


async def test_in_a_cluster_300_concurrent_reads_are_all_answered(cluster_url: str) -> None:
    store = histories(cluster_url)
    found = await asyncio.gather(*(store.recent([f"nobody-{n}"], 5) for n in range(300)))
    assert found == [[[]]] * 300
    await store.close()


async def test_in_a_cluster_feedback_is_kept_read_and_erased(cluster_url: str) -> None:
    log = RedisFeedback(cluster_url, timeout_seconds=2.0, max_entries=1000)
    await log.add_events([FeedbackEvent(f"user-{n % 2}", "item", "click", 1.0, float(n)) for n in range(10)])
    assert await log.erase("user-1") == 5
    assert {event.user_id async for event in log.events()} == {"user-0"}
    await log.close()


async def test_after_a_failover_the_same_store_speaks_to_the_new_master(sentinels: Watched) -> None:
    store = histories(sentinels.url)
    await store.append([("u", HistoryEvent("a", 1.0))])
    client = connect(sentinels.url, timeout_seconds=2.0)
    assert await client.execute_command("WAIT", 1, 5000) >= 0
    await client.aclose()
    await asyncio.sleep(0.5)
    sentinels.master.kill()
    with pytest.raises(StorageError):
        await store.recent(["u"], 5)
    await asyncio.to_thread(sentinels.wait_for_failover)
    async with asyncio.timeout(10):
        while True:
            try:
                await store.append([("u", HistoryEvent("b", 2.0))])
                break
            except StorageError:
                await asyncio.sleep(0.1)
    assert await store.recent(["u"], 5) == [["a", "b"]]
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel://127.0.0.1/service",
        "redis+cluster://127.0.0.1:7000/service",
        "redis+cluster://",
        "redis+ring://127.0.0.1:7000",
        "redis+cluster://:s3cret@127.0.0.1:port",
    ],
)
def test_a_url_that_is_none_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(SettingsError, match=r"redis\+sentinel://host:port,host:port/service") as refused:
        connect(url, timeout_seconds=1.0)
    assert "s3cret" not in str(refused.value)


async def test_login_and_tls_of_a_url_reach_the_connection() -> None:
    url = "rediss+sentinel://user:p%40ss@a:1,b:2/service/3?sentinel_password=x%2Fy"
    client = connect(url, timeout_seconds=1.0)
    options = client.connection_pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("user", "p@ss", 3)
    assert urlsplit(url).scheme.startswith("rediss") and "SSL" in client.connection_pool.connection_class.__name__
    sentinel = client.connection_pool.sentinel_manager.sentinels[1].connection_pool.connection_kwargs
    assert (sentinel["host"], sentinel["port"], sentinel["password"]) == ("b", 2, "x/y")
    await client.aclose()


async def keep_items(url: str) -> None:
    """The item log's whole life: proof, claims, reading, a snapshot."""
    log = RedisItemLog(url, fingerprint="abc", shown_url=url)
    assert await log.check(allow_volatile=True) == []
    state = await log.begin()
    drafts = [
        ItemDraft(ItemRecord(f"item-{n}", "text", "", {}), "hash", b"\x00\xff", (1, 2), (0, 5, 3)) for n in range(3)
    ]
    claims = await log.append(state.generation, drafts)
    assert [claim.sid for claim in claims] == [(1, 2, 0), (1, 2, 5), (1, 2, 3)]
    page = await log.read_after(LOG_START, 10, 0)
    assert [entry.item_id for entry in page.entries] == ["item-0", "item-1", "item-2"]
    assert (await log.read_after(page.position, 10, 0.05)).entries == ()
    header = SnapshotHeader(3, page.position, "", 0, "")
    assert await log.save(state, header, list(page.entries), 2)
    kept = await log.state()
    assert kept is not None and await log.load(kept.snapshots[0]) == list(page.entries)
    assert await log.lease("compaction", 5) is True and await log.lease("compaction", 5) is False
    await log.close()


async def test_in_a_cluster_the_item_log_is_kept(cluster_url: str) -> None:
    await keep_items(cluster_url)


async def test_behind_sentinels_the_item_log_is_kept(sentinels: Watched) -> None:
    await keep_items(sentinels.url)
