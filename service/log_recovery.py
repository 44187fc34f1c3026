"""Puts a lost item log right: republishes it from memory, or follows the new one and gives back what it lacks.

Every replica remembers the whole state, so a flushed Redis is filled again by whichever replica comes first, and one
that came back older (a restored backup, a lost tail) gets the entries it lost. Of one item the log keeps what is newer
than the common version, so nothing a client wrote after the loss is undone and nothing is written twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from service.catalog import Catalog
from service.stores.item_log import (
    LOG_START,
    ItemLog,
    LogEntry,
    LogLostError,
    LogState,
    Restoration,
    SnapshotHeader,
    latest,
)

LEASE_SECONDS = 10
PAGE = 5000
RESTORED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Recovered:
    """The log as it is now: its state, version, and the position to read on from."""

    generation: str
    state: Mapping[str, LogEntry]
    version: int
    position: str


class LogRecovery:
    """Works on one log."""

    def __init__(self, log: ItemLog) -> None:
        self._log = log

    async def recover(self, generation: str, catalog: Catalog, seen: Mapping[int, str]) -> Recovered:
        """Agree with the log again.

        Args:
            generation: the log that was followed.
            catalog: what this replica has.
            seen: version and position of the entries that were read last.

        Raises:
            LogLostError: another replica is putting it right just now; ask again.
            StorageError: no answer.
        """
        state = await self._log.state()
        if state is None:
            await self._republish(catalog)
            state = await self._log.state()
        if state is None:
            raise LogLostError("another replica is republishing the item log")
        found = await read_log(self._log, state)
        common = await self._common_version(generation, catalog.version, state, seen)
        if await self._give_back(found, catalog, common):
            found = await read_log(self._log, state)
        log = structlog.get_logger()
        log.warning("item_log_recovered", version=found.version, common_version=common, items=len(found.state))
        return found

    async def _republish(self, catalog: Catalog) -> None:
        if not await self._log.lease("republish", LEASE_SECONDS):
            return
        header = SnapshotHeader(catalog.version, LOG_START, "", 0, "", catalog.catalog_hash)
        if await self._log.republish(header, list(catalog.log_state().values())):
            structlog.get_logger().warning("item_log_republished", version=catalog.version)

    async def _common_version(self, generation: str, own: int, state: LogState, seen: Mapping[int, str]) -> int:
        """Up to which version the log and this replica tell the same story."""
        if state.generation != generation:
            return min(state.base, own)
        common = state.snapshots[-1].version if state.snapshots else 0
        page = await self._log.read_after(LOG_START, PAGE, 0)
        while page.entries:
            for entry in page.entries:
                if entry.version > own or seen.get(entry.version, entry.position) != entry.position:
                    return common
                common = max(common, entry.version)
            page = await self._log.read_after(page.position, PAGE, 0)
        return common

    async def _give_back(self, found: Recovered, catalog: Catalog, common: int) -> bool:
        """Write what the log lacks, above this replica's version so that no version means two things; whether any."""
        lost = [
            Restoration(entry, common)
            for entry in catalog.log_state().values()
            if entry.version > common and _knows_less(found.state.get(entry.item_id), common)
        ]
        ahead = found.version > catalog.version
        same = found.version == catalog.version and not catalog.differences(found.state, found.version)
        if not lost and (ahead or same):
            return False
        for first in range(0, max(len(lost), 1), RESTORED_AT_ONCE):
            await self._log.append(found.generation, lost[first : first + RESTORED_AT_ONCE], catalog.version)
        return True


async def read_log(log: ItemLog, state: LogState, version: int | None = None) -> Recovered:
    """The state at the log's end, or at an earlier ``version``, from a snapshot and the entries behind it.

    Raises:
        LogLostError: no snapshot at or before the version can be read and the log does not reach back far enough.
    """
    found, at, position = await _snapshot(log, state, version)
    while (page := await log.read_after(position, PAGE, 0)).position != position:
        entries = [entry for entry in page.entries if entry.version > at]
        if entries and entries[0].previous > at:
            raise LogLostError(f"the item log begins behind version {entries[0].previous}, the snapshot ends at {at}")
        wanted = [entry for entry in entries if version is None or entry.version <= version]
        found = latest(wanted, found)
        position, at = page.position, wanted[-1].version if wanted else at
        if len(wanted) < len(entries):
            break
    if at < (state.version if version is None else min(version, state.version)):
        raise LogLostError(f"the item log ends at version {at}, it should at {state.version}")
    return Recovered(state.generation, found, at, position)


async def _snapshot(log: ItemLog, state: LogState, version: int | None) -> tuple[dict[str, LogEntry], int, str]:
    for header in state.snapshots:
        if version is not None and header.version > version:
            continue
        try:
            return {entry.item_id: entry for entry in await log.load(header)}, header.version, header.position
        except LogLostError as error:
            structlog.get_logger().error("snapshot_unusable", detail=error.detail)
    return {}, 0, LOG_START


def _knows_less(entry: LogEntry | None, common: int) -> bool:
    return entry is None or entry.version <= common
