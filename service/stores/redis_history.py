r"""Histories in Redis. The keys are a contract: a backend may write them itself.

    groundrec:history:<user_id>   ZSET   score   Unix seconds
                                         member  <item_id>  or  <item_id>\x1f<event_id>

A plain ``ZADD groundrec:history:42 1700000000 item-7`` is enough. With an event id the same item can occur more than
once and a repeated event is idempotent. Our writes keep the newest N members and renew the time to live. One key a
user, no key for all of them, so a cluster spreads users over its nodes.
"""

import asyncio
from collections.abc import AsyncIterable, Sequence
from contextlib import suppress
from typing import Any

from service.stores.base import HistoryEvent
from service.stores.redis_connection import connect, storage_errors

HISTORY_KEY = "groundrec:history:"
EVENT_SEPARATOR = "\x1f"
DAY_SECONDS = 86_400
USERS_PER_TRIP = 200
SAMPLE_SECONDS = 1.0
SCANNED_PER_TRIP = 500


class RedisHistory:
    """Implements `service.stores.base.HistoryStore`."""

    def __init__(self, url: str, *, timeout_seconds: float, max_items: int, ttl_days: int) -> None:
        self._redis = connect(url, timeout_seconds=timeout_seconds)
        self._max_items = max_items
        self._ttl_seconds = ttl_days * DAY_SECONDS

    async def recent(self, user_ids: Sequence[str], limit: int) -> list[list[str]]:
        """See `HistoryStore.recent`."""
        with storage_errors("read a history"):
            if len(user_ids) == 1:
                found = [await self._redis.zrange(HISTORY_KEY + user_ids[0], 0, limit - 1, desc=True)]
            else:
                async with self._redis.pipeline(transaction=False) as trip:
                    for user_id in user_ids:
                        trip.zrange(HISTORY_KEY + user_id, 0, limit - 1, desc=True)
                    found = await trip.execute()
        return [[member.partition(EVENT_SEPARATOR)[0] for member in reversed(members)] for members in found]

    async def events(self, user_id: str, limit: int) -> list[HistoryEvent]:
        """See `HistoryStore.events`."""
        with storage_errors("read a history"):
            rows: Any = await self._redis.zrange(HISTORY_KEY + user_id, 0, limit - 1, desc=True, withscores=True)
        return [_event(member, score) for member, score in reversed(rows)]

    async def sample(self, limit: int) -> list[tuple[str, int]]:
        """See `HistoryStore.sample`; what was found in `SAMPLE_SECONDS`, as other keys may be many."""
        keys: list[str] = []
        with storage_errors("look for users"):
            with suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_SECONDS):
                    await self._find_keys(keys, limit)
            async with self._redis.pipeline(transaction=False) as trip:
                for key in keys:
                    trip.zcard(key)
                counts = await trip.execute()
        return [(key.removeprefix(HISTORY_KEY), count) for key, count in zip(keys, counts, strict=True)]

    async def append(self, events: Sequence[tuple[str, HistoryEvent]]) -> list[bool]:
        """See `HistoryStore.append`."""
        if not events:
            return []
        with storage_errors("append to a history"):
            async with self._redis.pipeline(transaction=False) as trip:
                self._queue(trip, events)
                answers = await trip.execute()
        return [bool(added) for added in answers[: len(events)]]

    async def erase(self, user_id: str) -> bool:
        """See `HistoryStore.erase`."""
        with storage_errors("erase a history"):
            return bool(await self._redis.delete(HISTORY_KEY + user_id))

    async def load(self, histories: AsyncIterable[tuple[str, Sequence[HistoryEvent]]]) -> int:
        """See `HistoryStore.load`."""
        users = 0
        with storage_errors("load histories"):
            async with self._redis.pipeline(transaction=False) as trip:
                async for user_id, events in histories:
                    self._queue_history(trip, user_id, events)
                    users += 1
                    if users % USERS_PER_TRIP == 0:
                        await trip.execute()
                await trip.execute()
        return users

    async def close(self) -> None:
        """See `HistoryStore.close`."""
        await self._redis.aclose()

    async def memory_bytes(self) -> int:
        """What Redis holds for data, all keys together."""
        with storage_errors("ask for the memory"):
            return int((await self._redis.info("memory"))["used_memory"])

    async def _find_keys(self, found: list[str], limit: int) -> None:
        """Add keys of histories to ``found`` as they turn up, so that what was found survives a cancellation."""
        scan = self._redis.scan_iter(match=HISTORY_KEY + "*", count=SCANNED_PER_TRIP, _type="zset")
        async for key in scan:
            if key not in found:
                found.append(key)
            if len(found) == limit:
                return

    def _queue(self, trip: Any, events: Sequence[tuple[str, HistoryEvent]]) -> None:
        """One ZADD an event, so that each answers whether it was new, then one bound a user."""
        for user_id, event in events:
            once = event.event_id is not None
            trip.zadd(HISTORY_KEY + user_id, {_member(event): event.timestamp}, nx=once, gt=not once)
        for user_id in dict.fromkeys(user_id for user_id, _ in events):
            self._queue_bound(trip, user_id)

    def _queue_history(self, trip: Any, user_id: str, events: Sequence[HistoryEvent]) -> None:
        if events:
            trip.zadd(HISTORY_KEY + user_id, {_member(event): event.timestamp for event in events}, gt=True)
            self._queue_bound(trip, user_id)

    def _queue_bound(self, trip: Any, user_id: str) -> None:
        trip.zremrangebyrank(HISTORY_KEY + user_id, 0, -self._max_items - 1)
        trip.expire(HISTORY_KEY + user_id, self._ttl_seconds)


def _member(event: HistoryEvent) -> str:
    return event.item_id if event.event_id is None else f"{event.item_id}{EVENT_SEPARATOR}{event.event_id}"


def _event(member: str, score: float) -> HistoryEvent:
    item_id, separator, event_id = member.partition(EVENT_SEPARATOR)
    return HistoryEvent(item_id, score, event_id if separator else None)
