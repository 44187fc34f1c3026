"""What the service asks of the storage of users' histories; the item log has a module of its own, `item_log`.

The protocol knows no Redis, and whoever implements it knows no HTTP and no model.
"""

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """A user met an item at a time (Unix seconds); events with different ``event_id`` are kept apart."""

    item_id: str
    timestamp: float
    event_id: str | None = None


class HistoryStore(Protocol):
    """Users' ordered past items, bounded in length and age."""

    async def recent(self, user_ids: Sequence[str], limit: int) -> list[list[str]]:
        """Item ids of the last ``limit`` events of each user, oldest first, empty for an unknown one; one round trip.

        Raises:
            StorageError: no answer.
        """
        ...

    async def events(self, user_id: str, limit: int) -> list[HistoryEvent]:
        """The last ``limit`` events of one user, oldest first.

        Raises:
            StorageError: no answer.
        """
        ...

    async def sample(self, limit: int) -> list[tuple[str, int]]:
        """Up to ``limit`` users in no order, each with the number of its events; for people who look around.

        Raises:
            StorageError: no answer.
        """
        ...

    async def append(self, events: Sequence[tuple[str, HistoryEvent]]) -> list[bool]:
        """Add (user, event) pairs in one round trip; says of each whether it was new.

        With an ``event_id`` an event is written once and never changes. Without, an item is in a history once, at its
        newest time. An event older than all that a full history keeps is dropped.

        Raises:
            StorageFullError: no memory left.
            StorageError: not acknowledged; all of it can be repeated.
        """
        ...

    async def erase(self, user_id: str) -> bool:
        """Forget a user; whether there was anything.

        Raises:
            StorageError: not acknowledged.
        """
        ...

    async def load(self, histories: AsyncIterable[tuple[str, Sequence[HistoryEvent]]]) -> int:
        """Append many users' events in few round trips; returns the number of users.

        Raises:
            StorageError: not acknowledged.
        """
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...
