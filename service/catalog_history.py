"""Earlier versions of the catalogue: what they held, how two differ, and how to go back to one.

Going back appends entries that undo what came after, so every replica follows as it follows anything, and going back
can itself be undone. How far back one can go is bounded by the oldest snapshot that is kept. It needs the log alone:
what the checkpoint says of an item is brought back by saying "reset".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.errors import StartupError
from service.log_recovery import Recovered, read_log
from service.stores.item_log import LOG_START, ItemLog, LogEntry, LogState, Restoration

AT_ONCE = 100
PAGE = 5000


@dataclass(frozen=True, slots=True)
class Difference:
    """Ids in order: items only in the later version, only in the earlier one, and in both but not the same."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The version that the log has now, how many items were put back, and which were not as they changed meanwhile."""

    version: int
    items: int
    conflicts: tuple[str, ...]


class CatalogHistory:
    """Looks into one log."""

    def __init__(self, log: ItemLog) -> None:
        self._log = log

    async def state(self) -> LogState:
        """The log as it is.

        Raises:
            StartupError: there is none.
        """
        state = await self._log.state()
        if state is None:
            raise StartupError("this Redis has no item log of this checkpoint; nothing was ever posted")
        return state

    async def at(self, version: int | None = None) -> Recovered:
        """The log's word on each item at a version, the newest by default.

        Raises:
            StartupError: the version does not exist, or is older than what the log still holds.
        """
        state = await self.state()
        if version is not None and not 0 <= version <= state.version:
            raise StartupError(f"version {version} does not exist; the newest is {state.version}")
        if version is not None and version < (oldest := await self.oldest()):
            raise StartupError(f"version {version} is no longer kept; the oldest is {oldest}")
        return await read_log(self._log, state, version)

    async def oldest(self) -> int:
        """The oldest version that can be looked at."""
        state = await self.state()
        first = (await self._log.read_after(LOG_START, 1, 0)).entries
        kept = [header.version for header in state.snapshots]
        return 0 if first and first[0].previous == 0 or not kept else min(kept)

    async def entries(self, limit: int) -> list[LogEntry]:
        """The newest entries, oldest first."""
        found: list[LogEntry] = []
        position = LOG_START
        while (page := await self._log.read_after(position, PAGE, 0)).position != position:
            found, position = [*found, *page.entries][-limit:], page.position
        return found

    async def rollback(self, version: int) -> RolledBack:
        """Make the catalogue what it was at ``version``.

        Raises:
            StartupError: the version is not kept.
            StorageError: not acknowledged; running it again completes it.
        """
        then, now = await self.at(version), await self.at()
        undo = [Restoration(entry, now.version) for entry in undoing(now.state, then.state)]
        conflicts: list[str] = []
        for first in range(0, len(undo), AT_ONCE):
            part = undo[first : first + AT_ONCE]
            claims = await self._log.append(now.generation, part)
            pairs = zip(part, claims, strict=True)
            conflicts += [change.entry.item_id for change, claim in pairs if claim.result == "conflict"]
        return RolledBack((await self.state()).version, len(undo) - len(conflicts), tuple(conflicts))


def undoing(now: Mapping[str, LogEntry], then: Mapping[str, LogEntry]) -> list[LogEntry]:
    """The entries that lead from one state to another."""
    back = [entry for item_id, entry in then.items() if not _same(entry, now.get(item_id))]
    return back + [_gone(entry) for item_id, entry in now.items() if item_id not in then and _gone(entry) != entry]


def difference(earlier: Mapping[str, LogEntry], later: Mapping[str, LogEntry]) -> Difference:
    """What changed; an item of the checkpoint that the log speaks of counts as changed, or removed if it is gone."""
    live = [{i for i, entry in state.items() if entry.op == "put"} for state in (earlier, later)]
    gone = [{i for i, entry in state.items() if entry.op == "delete"} for state in (earlier, later)]
    based = {i for state in (earlier, later) for i, entry in state.items() if entry.base}
    present = [(based - gone[side]) | live[side] for side in (0, 1)]
    both = present[0] & present[1]
    changed = sorted(i for i in both if not _same(later.get(i), earlier.get(i)))
    return Difference(tuple(sorted(present[1] - present[0])), tuple(sorted(present[0] - present[1])), tuple(changed))


def _gone(entry: LogEntry) -> LogEntry:
    """As if the log had never spoken of the item; posted items keep a trace, for their SID."""
    if not entry.base and entry.op == "delete":
        return entry
    return replace(entry, op="reset" if entry.base else "delete", item=None, content_hash="", vector=b"")


def _same(one: LogEntry | None, other: LogEntry | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.op, one.content_hash, one.sid) == (other.op, other.content_hash, other.sid)
