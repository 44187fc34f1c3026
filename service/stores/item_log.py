"""What the service asks of the item log: atomic claims, entries in order, snapshots of the state, and proof of loss.

The log is the truth about items newer than the checkpoint; every replica follows it. Versions are global: entry n makes
catalogue version n wherever it is applied. A *generation* is one unbroken life of the log: if Redis is flushed, the log
begins a new one and the replicas, which remember everything, put their items back. Nothing here knows Redis, HTTP or
the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.errors import StorageError
from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid

LOG_START = "0-0"
CODE_MARK = "\x1f"

Op = Literal["put", "delete", "reset", "mark", "code"]


class LogLostError(StorageError):
    """The log is not the one this replica follows: flushed, restored from an older copy or begun anew."""


class LogTrimmedError(LogLostError):
    """The log is the same but goes on behind what this replica has: it must start from a snapshot again."""


@dataclass(frozen=True, slots=True)
class BaseClaim:
    """What the checkpoint itself says of an item: it keeps that SID whatever is posted."""

    content_hash: str
    sid: Sid


@dataclass(frozen=True, slots=True)
class ItemDraft:
    """An item that wants into the log.

    Under ``prefix`` (all codes but the last) lie ``free`` last codes, which no item of the checkpoint has, and
    ``taken`` ones, each nearest first and together at least one. ``vector`` is the packed embedding.
    """

    item: ItemRecord
    content_hash: str
    vector: bytes
    prefix: Sid
    free: tuple[int, ...]
    taken: tuple[int, ...] = ()
    base: BaseClaim | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """An item that shall go; ``base`` if the checkpoint has it."""

    item_id: str
    base: BaseClaim | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry: the item has this content and this SID from here on (or is gone).

    Attributes:
        version: the catalogue version this entry makes.
        previous: the version before it; not ``version - 1`` after a loss.
        position: where it lies in the log; its first part is the time in milliseconds.
        op: ``put``; ``delete``; ``reset`` to what the checkpoint says; ``mark``, which says nothing about any item;
            ``code``: a spare code is opened (see `service.opened_codes`), whose name stands in the place of an item's.
        item_id: empty for a mark.
        item: None unless put.
        content_hash: digest of the content, empty unless put.
        sid: the SID it has, or had.
        since: the version from which on it has had this SID: its age in the bucket.
        vector: the packed embedding, empty unless put.
        base: whether it was an item of the writer's checkpoint.
    """

    version: int
    previous: int
    position: str
    op: Op
    item_id: str = ""
    item: ItemRecord | None = None
    content_hash: str = ""
    sid: Sid = ()
    since: int = 0
    vector: bytes = b""
    base: bool = False

    @property
    def seconds(self) -> float:
        """When it was written, Unix seconds."""
        return position_key(self.position)[0] / 1000


@dataclass(frozen=True, slots=True)
class Restoration:
    """Make an item what ``entry`` says, unless the log has something newer about it than version ``ceiling``."""

    entry: LogEntry
    ceiling: int


Change = ItemDraft | Removal | Restoration


@dataclass(frozen=True, slots=True)
class Claim:
    """What the log decided; ``version`` is None if nothing was written, ``sid`` None if there is no such item."""

    result: Literal["created", "updated", "unchanged", "deleted", "absent", "restored", "conflict"]
    sid: Sid | None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries in order, and the position behind them (which may lie past entries that could not be read)."""

    entries: tuple[LogEntry, ...]
    position: str


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Where a snapshot of the state lies: the state of ``version``; the log goes on behind ``position``."""

    version: int
    position: str
    key: str
    items: int
    sha256: str
    catalog_hash: str = ""


@dataclass(frozen=True, slots=True)
class LogState:
    """The log as a whole; ``base`` is the version at which its generation began, ``snapshots`` are newest first."""

    generation: str
    version: int
    base: int
    snapshots: tuple[SnapshotHeader, ...] = ()


class ItemLog(Protocol):
    """The append-only log of posted items, with the claims on SIDs. Every method raises StorageError for no answer."""

    async def state(self) -> LogState | None:
        """The log's state; None when there is no log (never begun, or flushed)."""
        ...

    async def begin(self) -> LogState:
        """The state, after beginning an empty log if there was none."""
        ...

    async def append(self, generation: str, changes: Sequence[Change], floor: int = 0) -> list[Claim]:
        """Decide and write all changes in order, in one step that cannot interleave with another.

        A draft of known content is "unchanged" and writes nothing. New content under the same prefix keeps its SID, a
        deleted item likewise gets its old one back; otherwise the SID is chosen: of ``free`` then ``taken`` the one
        with the fewest items, the earlier on a tie. With a ``floor`` that the log's version does not exceed, a mark is
        written first, so that every later version is above ``floor``.

        Raises:
            LogLostError: the log's generation is another.
            StorageFullError: no memory left; nothing was written.
        """
        ...

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """Up to ``limit`` entries behind ``position``; waits so long for the first."""
        ...

    async def load(self, header: SnapshotHeader) -> list[LogEntry]:
        """The newest entry of each item, as a snapshot holds them, by version.

        Raises:
            LogLostError: the snapshot is gone or damaged.
        """
        ...

    async def save(self, state: LogState, header: SnapshotHeader, entries: Sequence[LogEntry], kept: int) -> bool:
        """Add a snapshot and keep the newest ``kept`` ones; False: beaten to it.

        When there are so many, entries before the oldest of them are dropped.
        ``header`` needs no key and digest yet.
        """
        ...

    async def republish(self, header: SnapshotHeader, entries: Sequence[LogEntry]) -> bool:
        """Begin a new generation with this state if there is no log; of many callers one wins and gets True."""
        ...

    async def lease(self, name: str, seconds: int) -> bool:
        """Whether the caller may do the work called ``name``, alone for so long."""
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


def code_name(level: int, code: int) -> str:
    """What the log calls a spare code: no item can be called so, as ids hold no control characters."""
    return f"{CODE_MARK}code {level} {code}"


def is_code_name(item_id: str) -> bool:
    """Whether a log entry speaks of a spare code and not of an item."""
    return item_id.startswith(CODE_MARK)


def position_key(position: str) -> tuple[int, int]:
    """Positions as something that sorts."""
    time, _, sequence = position.partition("-")
    return int(time), int(sequence or 0)


def latest(entries: Sequence[LogEntry], state: Mapping[str, LogEntry] = {}) -> dict[str, LogEntry]:
    """The newest entry of each item after ``entries`` have been applied to ``state``, by version."""
    found = dict(state)
    for entry in entries:
        found.pop(entry.item_id, None)
        if entry.op in ("put", "delete", "code"):
            found[entry.item_id] = entry
    return found
