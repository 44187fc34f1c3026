"""A user's history for one request: Redis within a small time limit, else the last one this replica saw.

A recommendation from a slightly old history is better than none, and waiting for a hung Redis is worse than both. It
knows item ids only.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from service.errors import StorageError
from service.metrics import Metrics
from service.stores.base import HistoryStore

REMEMBERED_USERS = 10_000


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """Item ids oldest first; ``fresh`` is false when Redis did not answer."""

    item_ids: tuple[str, ...]
    fresh: bool


class Histories:
    """Reads histories under a time limit and remembers the most recent ones."""

    def __init__(self, store: HistoryStore, metrics: Metrics, *, limit: int, timeout_seconds: float) -> None:
        self._store = store
        self._metrics = metrics
        self._limit = limit
        self._timeout_seconds = timeout_seconds
        self._last: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    async def read(self, user_id: str) -> StoredHistory:
        """The stored history; empty for an unknown user, the last known one (or empty) when Redis is in trouble."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                item_ids = tuple(await self._store.recent(user_id, self._limit))
        except (StorageError, TimeoutError) as error:
            self._metrics.dependency_up.labels("redis").set(0)
            structlog.get_logger().warning("history_unavailable", fault=str(error) or "timeout")
            return StoredHistory(self._last.get(user_id, ()), fresh=False)
        self._metrics.dependency_up.labels("redis").set(1)
        self._remember(user_id, item_ids)
        return StoredHistory(item_ids, fresh=True)

    def _remember(self, user_id: str, item_ids: tuple[str, ...]) -> None:
        if not item_ids:
            self._last.pop(user_id, None)
            return
        self._last[user_id] = item_ids
        self._last.move_to_end(user_id)
        if len(self._last) > REMEMBERED_USERS:
            self._last.popitem(last=False)
