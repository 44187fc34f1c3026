"""Histories that live in the process, for tests: nothing survives a restart, so the service never chooses them."""

from collections.abc import AsyncIterable, Sequence
from itertools import islice

from service.stores.base import HistoryEvent


class MemoryHistory:
    """Implements `HistoryStore`."""

    def __init__(self, max_items: int = 200) -> None:
        self._max_items = max_items
        self._users: dict[str, dict[tuple[str, str | None], float]] = {}

    async def recent(self, user_ids: Sequence[str], limit: int) -> list[list[str]]:
        """See `HistoryStore.recent`."""
        return [[event.item_id for event in await self.events(user_id, limit)] for user_id in user_ids]

    async def events(self, user_id: str, limit: int) -> list[HistoryEvent]:
        """See `HistoryStore.events`."""
        kept = self._ordered(self._users.get(user_id, {}))[-limit:]
        return [HistoryEvent(item_id, time, event_id) for time, item_id, event_id in kept]

    async def sample(self, limit: int) -> list[tuple[str, int]]:
        """See `HistoryStore.sample`."""
        return [(user_id, len(kept)) for user_id, kept in islice(self._users.items(), limit)]

    async def append(self, events: Sequence[tuple[str, HistoryEvent]]) -> list[bool]:
        """See `HistoryStore.append`."""
        return [self._add(user_id, event) for user_id, event in events]

    async def erase(self, user_id: str) -> bool:
        """See `HistoryStore.erase`."""
        return self._users.pop(user_id, None) is not None

    async def load(self, histories: AsyncIterable[tuple[str, Sequence[HistoryEvent]]]) -> int:
        """See `HistoryStore.load`."""
        users = 0
        async for user_id, events in histories:
            await self.append([(user_id, event) for event in events])
            users += 1
        return users

    async def close(self) -> None:
        """See `HistoryStore.close`."""

    def _add(self, user_id: str, event: HistoryEvent) -> bool:
        kept = self._users.setdefault(user_id, {})
        place = (event.item_id, event.event_id)
        is_new = place not in kept
        if is_new or (event.event_id is None and event.timestamp > kept[place]):
            kept[place] = event.timestamp
        for _, item_id, event_id in self._ordered(kept)[: -self._max_items]:
            del kept[item_id, event_id]
        return is_new

    def _ordered(self, kept: dict[tuple[str, str | None], float]) -> list[tuple[float, str, str | None]]:
        places = [(time, item_id, event_id) for (item_id, event_id), time in kept.items()]
        return sorted(places, key=lambda place: (place[0], place[1], place[2] or ""))
