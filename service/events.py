"""The use case of POST /events: what users did, into their histories and into the feedback log.

Both writes can be repeated: histories take an ``event_id`` once, and readers of the feedback log tell repeated events
by it. The feedback is written first, so that a repeat after a failure finds the history unwritten rather than the
feedback lost. It knows no HTTP and no Redis.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.errors import InvalidRequestError
from service.event_weights import EventWeights
from service.feedback import Feedback
from service.histories import Histories
from service.lane import CurrentCatalog
from service.metrics import Metrics
from service.stores.base import HistoryEvent
from service.stores.feedback import FeedbackEvent

MAX_AHEAD_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class PostedEvent:
    """What a user did; ``timestamp`` in Unix seconds, None for now."""

    user_id: str
    item_id: str
    event: str
    timestamp: float | None = None
    event_id: str | None = None
    recommendation_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventsReport:
    """What became of a call's events.

    ``recorded`` entered a history or are feedback by their kind; ``duplicates`` were there before; ``feedback_only``
    of the recorded have weight 0; ``unknown_items`` of them name items this replica's catalogue has not (yet).
    """

    recorded: int
    duplicates: int
    feedback_only: int
    unknown_items: int


@dataclass(frozen=True, slots=True)
class ErasedUser:
    """What was deleted of a user."""

    user_id: str
    history: bool
    feedback_entries: int


class Events:
    """Takes events, and forgets users."""

    def __init__(
        self,
        histories: Histories,
        feedback: Feedback,
        weights: EventWeights,
        catalogs: CurrentCatalog,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._histories, self._feedback, self._weights = histories, feedback, weights
        self._catalogs, self._metrics, self._clock = catalogs, metrics, clock

    async def post(self, posted: Sequence[PostedEvent], *, many: bool = True) -> EventsReport:
        """Take events; ``many`` says whether pointers into the call have a place.

        Raises:
            InvalidRequestError: an event is of an unknown kind or lies in the future; nothing was written.
            StorageError: not acknowledged; repeating all of it is right.
        """
        now = self._clock()
        events = [self._event(event, f"/{place}" if many else "", now) for place, event in enumerate(posted)]
        await self._feedback.add(events)
        lasting = [event for event in events if event.weight > 0]
        pairs = [(event.user_id, HistoryEvent(event.item_id, event.timestamp, event.event_id)) for event in lasting]
        is_new = await self._histories.append(pairs)
        repeated = {id(event) for event, new in zip(lasting, is_new, strict=True) if not new and event.event_id}
        return self._report([event for event in events if id(event) not in repeated], len(repeated))

    async def erase(self, user_id: str) -> ErasedUser:
        """Delete a user's history and feedback; nobody of this name is no error.

        Raises:
            StorageError: not acknowledged; the call can be repeated.
        """
        history = await self._histories.erase(user_id)
        return ErasedUser(user_id, history, await self._feedback.erase(user_id))

    def _event(self, posted: PostedEvent, pointer: str, now: float) -> FeedbackEvent:
        weight = self._weights.of(posted.event, f"{pointer}/event")
        at = now if posted.timestamp is None else posted.timestamp
        if at > now + MAX_AHEAD_SECONDS:
            detail = "the time lies in the future; timestamps are Unix seconds, not milliseconds"
            raise InvalidRequestError(detail, pointer=f"{pointer}/timestamp")
        return FeedbackEvent(
            posted.user_id, posted.item_id, posted.event, weight, at, posted.event_id, posted.recommendation_id
        )

    def _report(self, recorded: Sequence[FeedbackEvent], duplicates: int) -> EventsReport:
        self._feedback.count(recorded)
        catalog = self._catalogs.current
        light = sum(event.weight <= 0 for event in recorded)
        unknown = sum(catalog.get(event.item_id) is None for event in recorded)
        self._metrics.events.labels("recorded").inc(len(recorded))
        self._metrics.events.labels("duplicate").inc(duplicates)
        return EventsReport(len(recorded), duplicates, light, unknown)
