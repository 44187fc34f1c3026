"""Feedback that lives in the process: for tests. Nothing here survives a restart."""

from collections import deque
from collections.abc import AsyncIterator, Sequence

from service.stores.feedback import FeedbackEvent, ServedRecommendation


class MemoryFeedback:
    """Implements `service.stores.feedback.FeedbackLog`."""

    def __init__(self, max_entries: int = 1000) -> None:
        self._served: deque[ServedRecommendation] = deque(maxlen=max_entries)
        self._events: deque[FeedbackEvent] = deque(maxlen=max_entries)

    async def add_served(self, entries: Sequence[ServedRecommendation]) -> None:
        """See `FeedbackLog.add_served`."""
        self._served.extend(entries)

    async def add_events(self, entries: Sequence[FeedbackEvent]) -> None:
        """See `FeedbackLog.add_events`."""
        self._events.extend(entries)

    async def served(self) -> AsyncIterator[ServedRecommendation]:
        """See `FeedbackLog.served`."""
        for entry in list(self._served):
            yield entry

    async def events(self) -> AsyncIterator[FeedbackEvent]:
        """See `FeedbackLog.events`."""
        for entry in list(self._events):
            yield entry

    async def erase(self, user_id: str) -> int:
        """See `FeedbackLog.erase`."""
        before = len(self._served) + len(self._events)
        served = [entry for entry in self._served if entry.user_id != user_id]
        events = [entry for entry in self._events if entry.user_id != user_id]
        self._served, self._events = deque(served, self._served.maxlen), deque(events, self._events.maxlen)
        return before - len(served) - len(events)

    async def close(self) -> None:
        """See `FeedbackLog.close`."""
