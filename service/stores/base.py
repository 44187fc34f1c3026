"""What the service asks of storage: users' histories and the append-only log of posted items.

The log is the truth about items newer than the checkpoint; every replica follows it. These protocols know no Redis,
and whoever implements them knows no HTTP and no model.
"""

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid

LOG_START = "0-0"


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


@dataclass(frozen=True, slots=True)
class ItemDraft:
    """An item that wants into the log.

    ``base_hash`` and ``base_sid`` are set for an item of the checkpoint's own catalogue: it keeps that SID.
    """

    item: ItemRecord
    content_hash: str
    base_hash: str | None = None
    base_sid: Sid | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What the log decided: the SID, the entry's position (None if nothing was written), who had the SID before."""

    result: Literal["created", "updated", "unchanged"]
    sid: Sid
    position: str | None = None
    collides_with: str | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log: the item has this content and this SID from here on."""

    position: str
    item: ItemRecord
    content_hash: str
    sid: Sid


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries in order, and the position behind them (which may lie past entries that could not be read)."""

    entries: tuple[LogEntry, ...]
    position: str


class ItemLog(Protocol):
    """The append-only log of posted items, with the claims on SIDs."""

    async def claim_and_append(self, draft: ItemDraft, candidates: Sequence[Sid]) -> Claim:
        """Decide the item's SID and append the entry, in one step that cannot interleave with another.

        Same id and content: "unchanged", nothing is written. Same id, new content: "updated"; the SID stays if it
        lies under the candidates' prefix (all but the last code), otherwise it is chosen anew. New id: the first of
        ``candidates`` (at least one, nearest first) that no posted item has; if all are taken, the first, which becomes
        a bucket.

        Raises:
            StorageError: not acknowledged.
        """
        ...

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """Up to ``limit`` entries behind ``position``; waits so long for the first.

        Raises:
            StorageError: no answer.
        """
        ...

    async def check(self, *, allow_volatile: bool) -> list[str]:
        """Prove that the log is reachable and keeps what it acknowledges; returns warnings.

        Raises:
            StartupError: it does not.
        """
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...


def position_key(position: str) -> tuple[int, int]:
    """Positions as something that sorts."""
    time, _, sequence = position.partition("-")
    return int(time), int(sequence or 0)
