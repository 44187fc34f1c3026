"""What was shown and what users did about it: two bounded logs, kept until they are exported.

Both are logs of facts: nothing is joined here, and an entry is never changed. They know no Redis; `redis_feedback` and
`memory_feedback` do.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ServedRecommendation:
    """What one answer showed. ``timestamp`` is Unix seconds; ``item_ids`` in order of rank."""

    recommendation_id: str
    timestamp: float
    model_version: str
    catalog_version: int
    item_ids: tuple[str, ...]
    user_id: str | None = None
    fallback: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """What a user did, when (Unix seconds), and because of which recommendation, if that is known."""

    user_id: str
    item_id: str
    event: str
    weight: float
    timestamp: float
    event_id: str | None = None
    recommendation_id: str | None = None


class FeedbackLog(Protocol):
    """Two append-only logs that keep about their newest ``N`` entries."""

    async def add_served(self, entries: Sequence[ServedRecommendation]) -> None:
        """Append in one round trip.

        Raises:
            StorageError: not acknowledged.
        """
        ...

    async def add_events(self, entries: Sequence[FeedbackEvent]) -> None:
        """Append in one round trip; a repeated call appends again, readers tell events by ``event_id``.

        Raises:
            StorageFullError: no memory left.
            StorageError: not acknowledged.
        """
        ...

    def served(self) -> AsyncIterator[ServedRecommendation]:
        """All that is kept, oldest first."""
        ...

    def events(self) -> AsyncIterator[FeedbackEvent]:
        """All that is kept, oldest first."""
        ...

    async def erase(self, user_id: str) -> int:
        """Delete every entry of a user from both logs; how many there were.

        Raises:
            StorageError: not acknowledged; the call can be repeated.
        """
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...
