"""Stores that live in the process: for tests, and as the readable twin of the Redis script.

Nothing here survives a restart, so the service never chooses them by itself.
"""

import asyncio
from collections.abc import AsyncIterable, Sequence
from itertools import islice

from service.model.semantic_ids import Sid
from service.stores.base import (
    Claim,
    HistoryEvent,
    ItemDraft,
    LogEntry,
    LogPage,
    position_key,
)


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


class MemoryItemLog:
    """Implements `ItemLog`; one event loop, so a method without an await is atomic."""

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self._claims: dict[str, tuple[Sid, str]] = {}
        self._owners: dict[Sid, str] = {}
        self._appended = asyncio.Event()

    async def claim_and_append(self, draft: ItemDraft, candidates: Sequence[Sid]) -> Claim:
        """See `ItemLog.claim_and_append`."""
        item_id, claimed = draft.item.item_id, self._claims.get(draft.item.item_id)
        known_hash = claimed[1] if claimed else draft.base_hash
        known_sid = draft.base_sid or (claimed[0] if claimed else None)
        if known_sid is not None and known_hash == draft.content_hash:
            return Claim("unchanged", known_sid)
        keeps = known_sid is not None and (draft.base_sid is not None or known_sid[:-1] == candidates[0][:-1])
        sid = known_sid if keeps and known_sid is not None else self._choose(candidates)
        collides = None if keeps else self._owners.get(sid)
        if known_sid is not None and not keeps and self._owners.get(known_sid) == item_id:
            del self._owners[known_sid]
        self._owners.setdefault(sid, item_id)
        self._claims[item_id] = (sid, draft.content_hash)
        position = f"{len(self._entries) + 1}-0"
        self._entries.append(LogEntry(position, draft.item, draft.content_hash, sid))
        self._appended.set()
        return Claim("created" if known_sid is None else "updated", sid, position, collides)

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """See `ItemLog.read_after`."""
        first = position_key(position)[0]
        if len(self._entries) <= first and wait_seconds:
            self._appended.clear()
            try:
                await asyncio.wait_for(self._appended.wait(), wait_seconds)
            except TimeoutError:
                return LogPage((), position)
        page = tuple(self._entries[first : first + limit])
        return LogPage(page, page[-1].position if page else position)

    async def check(self, *, allow_volatile: bool) -> list[str]:
        """See `ItemLog.check`."""
        return [] if allow_volatile else ["the item log lives in memory"]

    async def close(self) -> None:
        """See `ItemLog.close`."""

    def _choose(self, candidates: Sequence[Sid]) -> Sid:
        return next((sid for sid in candidates if sid not in self._owners), candidates[0])
