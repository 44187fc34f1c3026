"""Keeps the item log short: now and then the state becomes a snapshot, and entries that no snapshot needs are dropped.

One replica at a time does it, beside the requests. A reader that lags behind what was dropped starts from a snapshot,
as a new replica does. The last `SNAPSHOTS` snapshots stay, so that versions back to the oldest can be looked at and
rolled back to.
"""

import asyncio

import structlog

from service.catalog import Catalog
from service.errors import StorageError
from service.metrics import Metrics
from service.stores.item_log import ItemLog, LogState, SnapshotHeader

SNAPSHOTS = 3
COMPACT_ENTRIES = 10_000
LEASE_SECONDS = 60


class Compaction:
    """Takes offers of catalogues and makes a snapshot of every ``every``-th version or so."""

    def __init__(self, log: ItemLog, metrics: Metrics, every: int = COMPACT_ENTRIES) -> None:
        self._log, self._metrics, self._every = log, metrics, every
        self._asked_at = 0
        self._task: asyncio.Task[None] | None = None

    def offer(self, generation: str, catalog: Catalog, position: str) -> None:
        """Compact in the background if this version is far enough from the last one that was offered."""
        if catalog.version - self._asked_at < self._every or (self._task and not self._task.done()):
            return
        self._asked_at = catalog.version
        self._task = asyncio.create_task(self._try(generation, catalog, position), name="compaction")

    async def compact(self, generation: str, catalog: Catalog, position: str, *, every: int | None = None) -> bool:
        """Write a snapshot unless a recent one is there; whether one was written.

        Raises:
            StorageError: not acknowledged; the log is as it was.
        """
        state = await self._log.state()
        if state is None or state.generation != generation or not _is_due(state, catalog, every or self._every):
            return False
        if not await self._log.lease("compact", LEASE_SECONDS):
            return False
        entries = await asyncio.to_thread(lambda: list(catalog.log_state().values()))
        header = SnapshotHeader(catalog.version, position, "", 0, "", catalog.catalog_hash)
        return await self._log.save(state, header, entries, SNAPSHOTS)

    async def close(self) -> None:
        """Wait for what is at work."""
        if self._task:
            await asyncio.wait([self._task])

    async def _try(self, generation: str, catalog: Catalog, position: str) -> None:
        try:
            with self._metrics.stage("compaction"):
                saved = await self.compact(generation, catalog, position)
        except StorageError as error:
            structlog.get_logger().warning("compaction_failed", fault=error.detail)
        else:
            structlog.get_logger().info("compaction", version=catalog.version, saved=saved)


def _is_due(state: LogState, catalog: Catalog, every: int) -> bool:
    newest = state.snapshots[0].version if state.snapshots else 0
    return catalog.version - newest >= every
