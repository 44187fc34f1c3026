"""The promises of histories and feedback, kept alike by Redis and by the stores in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import redis

from service.errors import StorageError, StorageFullError
from service.stores.base import HistoryEvent, HistoryStore
from service.stores.feedback import FeedbackEvent, FeedbackLog, ServedRecommendation
from service.stores.memory import MemoryHistory
from service.stores.memory_feedback import MemoryFeedback
from service.stores.redis_feedback import EVENTS_KEY, RedisFeedback
from service.stores.redis_history import RedisHistory
from tests.redis_server import RedisServer


def redis_histories(url: str, timeout_seconds: float = 1.0) -> RedisHistory:
    return RedisHistory(url, timeout_seconds=timeout_seconds, max_items=5, ttl_days=2)


def of(user_id: str, *events: HistoryEvent) -> list[tuple[str, HistoryEvent]]:
    return [(user_id, event) for event in events]


@pytest.fixture(params=["redis", "memory"])
async def histories(request: pytest.FixtureRequest) -> AsyncIterator[HistoryStore]:
    store: HistoryStore = MemoryHistory(max_items=5)
    if request.param == "redis":
        store = redis_histories(request.getfixturevalue("redis_url"))
    yield store
    await store.close()


@pytest.fixture(params=["redis", "memory"])
async def feedback(request: pytest.FixtureRequest) -> AsyncIterator[FeedbackLog]:
    store: FeedbackLog = MemoryFeedback(10_000)
    if request.param == "redis":
        store = RedisFeedback(request.getfixturevalue("redis_url"), timeout_seconds=5, max_entries=10_000)
    yield store
    await store.close()


async def test_a_history_is_read_oldest_first_and_newest_only(histories: HistoryStore) -> None:
    await histories.append(of("u", HistoryEvent("b", 2), HistoryEvent("c", 3), HistoryEvent("a", 1)))
    assert await histories.recent(["u"], 10) == [["a", "b", "c"]]
    assert await histories.recent(["u", "nobody", "u"], 2) == [["b", "c"], [], ["b", "c"]]


async def test_late_events_take_their_place_in_time(histories: HistoryStore) -> None:
    await histories.append(of("u", HistoryEvent("b", 2, "e2"), HistoryEvent("d", 4, "e4")))
    await histories.append(of("u", HistoryEvent("c", 3, "e3")))
    assert await histories.recent(["u"], 10) == [["b", "c", "d"]]
    assert await histories.events("u", 2) == [HistoryEvent("c", 3, "e3"), HistoryEvent("d", 4, "e4")]


async def test_a_sample_names_users_and_counts_their_events(histories: HistoryStore) -> None:
    assert await histories.sample(3) == []
    for user in "abc":
        await histories.append(of(user, HistoryEvent("x", 1), HistoryEvent("y", 2)))
    assert sorted(await histories.sample(10)) == [("a", 2), ("b", 2), ("c", 2)]
    assert len(await histories.sample(2)) == 2


async def test_a_sample_takes_histories_for_users_and_nothing_else(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("groundrec:history:text", "no history")
        client.zadd("groundrec:other", {"x": 1})
        client.zadd("groundrec:history:a:b", {"x": 1})
    store = redis_histories(redis_url)
    assert await store.sample(10) == [("a:b", 1)]
    await store.close()


async def test_events_with_ids_repeat_items_and_are_idempotent(histories: HistoryStore) -> None:
    events = of("u", HistoryEvent("a", 1, "e1"), HistoryEvent("b", 2, "e2"), HistoryEvent("a", 3, "e3"))
    assert await histories.append(events) == [True, True, True]
    assert await histories.append(events) == [False, False, False]
    assert await histories.recent(["u"], 10) == [["a", "b", "a"]]


async def test_a_repeated_event_id_cannot_move_its_event(histories: HistoryStore) -> None:
    await histories.append(of("u", HistoryEvent("a", 1, "e1"), HistoryEvent("b", 2, "e2")))
    assert await histories.append(of("u", HistoryEvent("a", 9, "e1"))) == [False]
    assert await histories.recent(["u"], 10) == [["a", "b"]]


async def test_without_ids_an_item_is_there_once_at_its_newest_time(histories: HistoryStore) -> None:
    await histories.append(of("u", HistoryEvent("a", 5), HistoryEvent("b", 6)))
    assert await histories.append(of("u", HistoryEvent("a", 7), HistoryEvent("b", 1))) == [False, False]
    assert await histories.events("u", 9) == [HistoryEvent("b", 6), HistoryEvent("a", 7)]


async def test_histories_are_bounded_metarank_1543(histories: HistoryStore) -> None:
    await histories.append(of("u", *(HistoryEvent(f"item-{n}", n) for n in range(20))))
    await histories.append(of("u", HistoryEvent("last", 99)))
    assert await histories.recent(["u"], 50) == [["item-16", "item-17", "item-18", "item-19", "last"]]


async def test_an_erased_user_is_unknown(histories: HistoryStore) -> None:
    await histories.append(of("u", HistoryEvent("a", 1)) + of("v", HistoryEvent("a", 1)))
    assert await histories.erase("u") is True
    assert await histories.erase("u") is False
    assert await histories.recent(["u", "v"], 5) == [[], ["a"]]


async def test_many_histories_are_loaded_and_counted(histories: HistoryStore) -> None:
    async def rows() -> AsyncIterator[tuple[str, Sequence[HistoryEvent]]]:
        for user in range(450):
            yield f"user-{user}", [HistoryEvent(f"item-{user}", 1.0)]
        yield "empty", []

    assert await histories.load(rows()) == 451
    assert await histories.recent(["user-0", "user-449"], 5) == [["item-0"], ["item-449"]]


async def test_a_plain_zadd_by_a_backend_is_a_history(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as backend:
        backend.zadd("groundrec:history:42", {"item-7": 1_700_000_000, "item-8": 1_600_000_000})
    store = redis_histories(redis_url)
    assert await store.recent(["42"], 10) == [["item-8", "item-7"]]
    await store.close()


async def test_a_member_that_is_no_utf8_is_an_unknown_item_not_a_failure(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as backend:
        backend.zadd("groundrec:history:42", {b"\xff\xfe": 1.0, b"50": 2.0})
    store = redis_histories(redis_url)
    assert (await store.recent(["42"], 10))[0][-1] == "50"
    await store.close()


async def test_a_history_is_forgotten_some_time_after_its_last_event(redis_url: str) -> None:
    store = redis_histories(redis_url)
    await store.append(of("u", HistoryEvent("a", 1)))
    await store.close()
    with redis.Redis.from_url(redis_url) as backend:
        assert 2 * 86_400 - 5 <= int(backend.ttl("groundrec:history:u")) <= 2 * 86_400


async def test_a_key_of_the_wrong_type_is_a_storage_error(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as backend:
        backend.rpush("groundrec:history:u", "a")
    store = redis_histories(redis_url)
    with pytest.raises(StorageError, match="read a history"):
        await store.recent(["u"], 5)
    await store.close()


async def test_300_concurrent_reads_wait_for_a_connection_instead_of_failing(redis_url: str) -> None:
    store = redis_histories(redis_url, timeout_seconds=5)
    assert await asyncio.gather(*(store.recent(["u"], 5) for _ in range(300))) == [[[]]] * 300
    await store.close()


async def test_a_full_redis_refuses_writes_by_name_and_is_read_on(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--save", "", "--maxmemory-policy", "noeviction").start()
    try:
        store = redis_histories(server.url)
        log = RedisFeedback(server.url, timeout_seconds=1, max_entries=10)
        await store.append(of("u", HistoryEvent("a", 1)))
        with redis.Redis.from_url(server.url) as admin:
            admin.config_set("maxmemory", 1)
        with pytest.raises(StorageFullError, match="append to a history: Redis is at its maxmemory"):
            await store.append(of("u", HistoryEvent("b", 2)))
        with pytest.raises(StorageFullError, match="append to the feedback"):
            await log.add_events([event("u", "b")])
        assert await store.recent(["u"], 5) == [["a"]]
        await store.close()
        await log.close()
    finally:
        server.kill()


def event(user_id: str, item_id: str, **fields: str) -> FeedbackEvent:
    return FeedbackEvent(user_id, item_id, "click", 1.0, 5.0, **fields)


def served(recommendation_id: str, user_id: str | None) -> ServedRecommendation:
    return ServedRecommendation(recommendation_id, 4.0, "model", 3, ("a", "Ä"), user_id, "cold_user", {"page": "home"})


async def test_feedback_comes_back_as_it_went_in_and_in_order(feedback: FeedbackLog) -> None:
    shown = [served("r-1", "u"), served("r-2", None)]
    acted = [event("u", "a", event_id="e", recommendation_id="r-1"), event("v", "b")]
    await feedback.add_served(shown)
    await feedback.add_events(acted)
    assert [entry async for entry in feedback.served()] == shown
    assert [entry async for entry in feedback.events()] == acted


async def test_an_erased_user_leaves_no_feedback(feedback: FeedbackLog) -> None:
    await feedback.add_served([served(f"r-{n}", "u" if n % 2 else "v") for n in range(2500)])
    await feedback.add_events([event("u", "a"), event("v", "a"), event("u", "b")])
    assert await feedback.erase("u") == 1252
    assert {entry.user_id async for entry in feedback.served()} == {"v"}
    assert [entry.user_id async for entry in feedback.events()] == ["v"]
    assert await feedback.erase("u") == 0


async def test_feedback_is_bounded_metarank_1543(redis_url: str) -> None:
    log = RedisFeedback(redis_url, timeout_seconds=5, max_entries=500)
    await log.add_events([event("u", f"item-{n}") for n in range(3000)])
    kept = [entry.item_id async for entry in log.events()]
    assert 500 <= len(kept) <= 700, "a stream is cut by whole nodes of about 100"
    assert kept[-1] == "item-2999"
    await log.close()


async def test_feedback_nobody_can_read_is_passed_over(redis_url: str) -> None:
    log = RedisFeedback(redis_url, timeout_seconds=5, max_entries=500)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.xadd(EVENTS_KEY, {"entry": "{not json"})
        foreign.xadd(EVENTS_KEY, {"other": "field"})
    await log.add_events([event("u", "a")])
    assert [entry.item_id async for entry in log.events()] == ["a"]
    assert await log.erase("u") == 1
    await log.close()
