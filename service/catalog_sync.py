"""Follows the item log: reads entries, builds the next catalogue version, tells the engine, then swaps one reference.

The engine learns a version before any request may name it. When Redis or the engine is in trouble the current version
keeps being served and the work is tried again; nothing is skipped. It decides no SIDs: the log has.
"""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import structlog
from numpy.typing import NDArray

from service.catalog import Catalog
from service.engine.base import CatalogDelta, Engine
from service.errors import EngineError, StorageError
from service.grounder import Grounder
from service.metrics import Metrics
from service.model.semantic_ids import Sid, SidSpace
from service.model.smoothing import SiblingMixer
from service.stores.base import LOG_START, ItemLog, LogEntry, LogPage, position_key

BATCH = 500
WAIT_SECONDS = 1.0
RETRY_SECONDS = 0.5

New = tuple[Sid, NDArray[np.float32]]


class CatalogSync:
    """Owns the reference to the current `Catalog`."""

    def __init__(
        self,
        catalog: Catalog,
        space: SidSpace,
        log: ItemLog,
        engine: Engine,
        grounder: Grounder,
        mixer: SiblingMixer,
        metrics: Metrics,
    ) -> None:
        self._space = space
        self._log = log
        self._engine = engine
        self._grounder = grounder
        self._mixer = mixer
        self._metrics = metrics
        self._position = LOG_START
        self._pending: LogPage | None = None
        self._published = asyncio.Condition()
        self._catalog = catalog
        self._report()

    @property
    def current(self) -> Catalog:
        """The newest version that requests may name."""
        return self._catalog

    async def replay(self) -> None:
        """Catch up with the whole log; returns at its end.

        Raises:
            StorageError: Redis does not answer.
            EngineError: the engine does not take a version.
        """
        while await self._step(wait_seconds=0):
            pass

    async def run(self) -> None:
        """Follow the log for ever."""
        while True:
            try:
                await self._step(WAIT_SECONDS)
                self._metrics.dependency_up.labels("redis").set(1)
            except (StorageError, EngineError) as error:
                if isinstance(error, StorageError):
                    self._metrics.dependency_up.labels("redis").set(0)
                structlog.get_logger().warning("catalog_sync_waits", fault=error.detail)
                await asyncio.sleep(RETRY_SECONDS)

    async def wait_for(self, position: str) -> None:
        """Return once the entry at ``position`` can be recommended here."""
        wanted = position_key(position)
        async with self._published:
            await self._published.wait_for(lambda: position_key(self._position) >= wanted)

    async def _step(self, wait_seconds: float) -> bool:
        """Apply the next entries; whether there were any."""
        page = self._pending or await self._log.read_after(self._position, BATCH, wait_seconds)
        if page.position == self._position:
            return False
        # A failed version is tried again with the same entries: the engine may have taken it and lost only its answer.
        self._pending = page
        entries = [entry for entry in page.entries if self._is_legal(entry)]
        if entries:
            await self._advance(entries)
        async with self._published:
            self._position, self._pending = page.position, None
            self._published.notify_all()
        for entry in entries:
            self._metrics.visible_lag.observe(max(0.0, time.time() - position_key(entry.position)[0] / 1000))
        return True

    async def _advance(self, entries: Sequence[LogEntry]) -> None:
        with self._metrics.stage("catalog_update"):
            following = self._catalog.with_items(entries)
            await self._engine.update_catalog(await self._delta(following, entries))
        self._catalog = following
        self._report()

    async def _delta(self, following: Catalog, entries: Sequence[LogEntry]) -> CatalogDelta:
        touched = {entry.item.item_id for entry in entries}
        before = {item.sid for item_id in touched if (item := self._catalog.get(item_id))}
        after = {item.sid for item_id in touched if (item := following.get(item_id))}
        added = sorted(sid for sid in after if not self._catalog.bucket(sid))
        removed = sorted(sid for sid in before if not following.bucket(sid))
        fresh = following.new_items()
        embeddings = await self._grounder.embed([item.item for item in fresh])
        new: list[New] = [(item.sid, embedding) for item, embedding in zip(fresh, embeddings, strict=True)]
        smoothing = await self._grounder.run(lambda: self._mixer.mixes(new))
        return CatalogDelta(following.version, added, removed, smoothing)

    def _is_legal(self, entry: LogEntry) -> bool:
        try:
            self._space.check(entry.sid)
        except ValueError as error:
            structlog.get_logger().error("item_log_entry_skipped", position=entry.position, fault=str(error))
            return False
        return True

    def _report(self) -> None:
        self._metrics.catalog_items.set(len(self._catalog))
        self._metrics.catalog_version.set(self._catalog.version)
