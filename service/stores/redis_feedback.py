"""Feedback in two Redis streams, one field ``entry`` with a JSON object each.

    groundrec:feedback:served    STREAM   recommendation_id, timestamp, model_version, catalog_version, item_ids,
                                          user_id, fallback, context
    groundrec:feedback:events    STREAM   user_id, item_id, event, weight, timestamp, event_id, recommendation_id

Bounded by ``MAXLEN ~``. Erasing a user reads both from end to end: rare, and without an index that every append would
pay for.
"""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import orjson
import structlog

from service.stores.feedback import FeedbackEvent, ServedRecommendation
from service.stores.redis_connection import connect, storage_errors

SERVED_KEY = "groundrec:feedback:served"
EVENTS_KEY = "groundrec:feedback:events"
PAGE = 1000

Entry = TypeVar("Entry", ServedRecommendation, FeedbackEvent)


class RedisFeedback:
    """Implements `service.stores.feedback.FeedbackLog`."""

    def __init__(self, url: str, *, timeout_seconds: float, max_entries: int) -> None:
        self._redis = connect(url, timeout_seconds=timeout_seconds)
        self._max_entries = max_entries

    async def add_served(self, entries: Sequence[ServedRecommendation]) -> None:
        """See `FeedbackLog.add_served`."""
        await self._append(SERVED_KEY, entries)

    async def add_events(self, entries: Sequence[FeedbackEvent]) -> None:
        """See `FeedbackLog.add_events`."""
        await self._append(EVENTS_KEY, entries)

    async def served(self) -> AsyncIterator[ServedRecommendation]:
        """See `FeedbackLog.served`."""
        async for _, fields in self._rows(SERVED_KEY):
            if entry := _read(ServedRecommendation, fields):
                yield dataclasses.replace(entry, item_ids=tuple(entry.item_ids))

    async def events(self) -> AsyncIterator[FeedbackEvent]:
        """See `FeedbackLog.events`."""
        async for _, fields in self._rows(EVENTS_KEY):
            if entry := _read(FeedbackEvent, fields):
                yield entry

    async def erase(self, user_id: str) -> int:
        """See `FeedbackLog.erase`."""
        erased = 0
        for key in (SERVED_KEY, EVENTS_KEY):
            found = [place async for place, fields in self._rows(key) if _user(fields) == user_id]
            for first in range(0, len(found), PAGE):
                with storage_errors("erase feedback"):
                    erased += await self._redis.xdel(key, *found[first : first + PAGE])
        return erased

    async def close(self) -> None:
        """See `FeedbackLog.close`."""
        await self._redis.aclose()

    async def _append(self, key: str, entries: Sequence[Any]) -> None:
        if not entries or not self._max_entries:
            return
        with storage_errors("append to the feedback"):
            async with self._redis.pipeline(transaction=False) as trip:
                for entry in entries:
                    row = {"entry": orjson.dumps(entry).decode()}
                    trip.xadd(key, row, maxlen=self._max_entries, approximate=True)
                await trip.execute()

    async def _rows(self, key: str) -> AsyncIterator[tuple[str, dict[str, str]]]:
        after = "-"
        while True:
            with storage_errors("read the feedback"):
                page: Any = await self._redis.xrange(key, min=after, count=PAGE)
            for place, fields in page:
                yield place, fields
            if len(page) < PAGE:
                return
            after = f"({page[-1][0]}"


def _read(kind: type[Entry], fields: dict[str, str]) -> Entry | None:
    try:
        return kind(**orjson.loads(fields["entry"]))
    except (KeyError, TypeError, ValueError) as error:
        structlog.get_logger().warning("feedback_entry_skipped", fault=repr(error)[:200])
        return None


def _user(fields: dict[str, str]) -> str | None:
    try:
        found: str | None = orjson.loads(fields["entry"])["user_id"]
    except (KeyError, TypeError, ValueError):
        return None
    return found
