r"""Histories in Redis. The keys are a contract: a backend may write them itself.

    groundrec:history:<user_id>   ZSET   score   Unix seconds
                                         member  <item_id>  or  <item_id>\x1f<event_id>

A plain ``ZADD groundrec:history:42 1700000000 item-7`` is enough. With an event id the same item can occur more than
once and a repeated event is idempotent. Our writes keep the newest N members and renew the time to live.
"""

from collections.abc import AsyncIterable, Sequence
from typing import Any

from service.stores.base import HistoryEvent
from service.stores.redis_connection import connect, storage_errors

HISTORY_KEY = "groundrec:history:"
EVENT_SEPARATOR = "\x1f"
DAY_SECONDS = 86_400
USERS_PER_TRIP = 200


class RedisHistory:
    """Implements `service.stores.base.HistoryStore`."""

    def __init__(self, url: str, *, timeout_seconds: float, max_items: int, ttl_days: int) -> None:
        self._redis = connect(url, timeout_seconds=timeout_seconds)
        self._max_items = max_items
        self._ttl_seconds = ttl_days * DAY_SECONDS

    async def recent(self, user_id: str, limit: int) -> list[str]:
        """See `HistoryStore.recent`."""
        with storage_errors("read a history"):
            members: Any = await self._redis.zrange(HISTORY_KEY + user_id, 0, limit - 1, desc=True)
        return [member.partition(EVENT_SEPARATOR)[0] for member in reversed(members)]

    async def append(self, user_id: str, events: Sequence[HistoryEvent]) -> None:
        """See `HistoryStore.append`."""
        with storage_errors("append to a history"):
            async with self._redis.pipeline(transaction=False) as trip:
                self._queue(trip, user_id, events)
                await trip.execute()

    async def load(self, histories: AsyncIterable[tuple[str, Sequence[HistoryEvent]]]) -> int:
        """See `HistoryStore.load`."""
        users = 0
        with storage_errors("load histories"):
            async with self._redis.pipeline(transaction=False) as trip:
                async for user_id, events in histories:
                    self._queue(trip, user_id, events)
                    users += 1
                    if users % USERS_PER_TRIP == 0:
                        await trip.execute()
                await trip.execute()
        return users

    async def close(self) -> None:
        """See `HistoryStore.close`."""
        await self._redis.aclose()

    def _queue(self, trip: Any, user_id: str, events: Sequence[HistoryEvent]) -> None:
        if not events:
            return
        key = HISTORY_KEY + user_id
        trip.zadd(key, {_member(event): event.timestamp for event in events})
        trip.zremrangebyrank(key, 0, -self._max_items - 1)
        trip.expire(key, self._ttl_seconds)


def _member(event: HistoryEvent) -> str:
    return event.item_id if event.event_id is None else f"{event.item_id}{EVENT_SEPARATOR}{event.event_id}"
