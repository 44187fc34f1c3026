"""Users' histories for requests: Redis within a small time limit, else the last one this replica saw.

A recommendation from a slightly old history is better than none, and waiting for a hung Redis is worse than both. What
is remembered is forgotten after a while, so that an erased user does not live on here. It knows item ids only.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from service.circuit import Circuit
from service.errors import StorageError, StorageFullError
from service.metrics import Metrics
from service.patience import within
from service.stores.base import HistoryEvent, HistoryStore

REMEMBERED_USERS = 10_000
USERS_PER_PATIENCE = 64  # a batch of 256 users is 2 MB of answer: it gets five times the time of one user
REMEMBERED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """Item ids oldest first; ``fresh`` is false when Redis did not answer."""

    item_ids: tuple[str, ...]
    fresh: bool


class Histories:
    """Reads histories under a time limit and remembers the most recent ones."""

    def __init__(
        self,
        store: HistoryStore,
        metrics: Metrics,
        circuit: Circuit,
        *,
        limit: int,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._metrics, self._circuit = store, metrics, circuit
        self._limit, self._timeout_seconds, self._clock = limit, timeout_seconds, clock
        self._last: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()

    async def read(self, user_ids: Sequence[str]) -> list[StoredHistory]:
        """The stored history of each user, read in one round trip.

        Empty for an unknown user; when Redis is in trouble the last known one, or empty.
        """
        if not user_ids:
            return []
        try:
            with self._metrics.stage("history") as span, self._circuit.call(StorageError, TimeoutError):
                patience = self._timeout_seconds * (1 + len(user_ids) // USERS_PER_PATIENCE)
                found = await within(patience, self._store.recent(user_ids, self._limit))
                span.set(users=len(user_ids), items=sum(map(len, found)))
        except (StorageError, TimeoutError) as error:
            if not self._circuit.is_open:
                structlog.get_logger().warning("history_unavailable", fault=str(error) or "timeout")
            return [StoredHistory(self._recall(user_id), fresh=False) for user_id in user_ids]
        for user_id, item_ids in zip(user_ids, found, strict=True):
            self._remember(user_id, tuple(item_ids))
        return [StoredHistory(tuple(item_ids), fresh=True) for item_ids in found]

    async def events(self, user_id: str, limit: int) -> list[HistoryEvent]:
        """A user's stored events, oldest first.

        Raises:
            StorageError: Redis is in trouble.
        """
        with self._circuit.call(StorageError):
            return await self._store.events(user_id, limit)

    async def sample(self, limit: int) -> list[tuple[str, int]]:
        """See `HistoryStore.sample`."""
        with self._circuit.call(StorageError):
            return await self._store.sample(limit)

    async def append(self, events: Sequence[tuple[str, HistoryEvent]]) -> list[bool]:
        """See `HistoryStore.append`."""
        with self._circuit.call(StorageError, answers=(StorageFullError,)):
            return await self._store.append(events)

    async def erase(self, user_id: str) -> bool:
        """Forget a user, here and in Redis; other replicas forget within `REMEMBERED_SECONDS`.

        Raises:
            StorageError: not acknowledged.
        """
        self._last.pop(user_id, None)
        with self._circuit.call(StorageError):
            return await self._store.erase(user_id)

    def _recall(self, user_id: str) -> tuple[str, ...]:
        since, item_ids = self._last.get(user_id, (0.0, ()))
        return item_ids if self._clock() - since < REMEMBERED_SECONDS else ()

    def _remember(self, user_id: str, item_ids: tuple[str, ...]) -> None:
        if not item_ids:
            self._last.pop(user_id, None)
            return
        self._last[user_id] = self._clock(), item_ids
        self._last.move_to_end(user_id)
        if len(self._last) > REMEMBERED_USERS:
            self._last.popitem(last=False)
