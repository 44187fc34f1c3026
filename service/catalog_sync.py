"""Follows the item log: reads entries, builds the next catalogue version, tells the engine, then swaps one reference.

Everything costs what a step changes, not what there is. The engine and the followers learn a version before any request
may name it. When Redis or the engine is in trouble the current version keeps being served and the work is tried again
with the same step; nothing is skipped. A start reads the newest snapshot and the log behind it. Putting a lost log
right is `log_recovery`'s business, making snapshots `compaction`'s. It decides no SIDs: the log has.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from service.catalog import Catalog, CatalogStep
from service.compaction import Compaction
from service.engine.base import CatalogDelta, Engine
from service.errors import EngineError, StorageError
from service.grounder import Grounder
from service.log_recovery import LogRecovery
from service.metrics import Metrics
from service.model.semantic_ids import SidSpace
from service.opened_codes import CodeChange, OpenedCodes
from service.siblings import SiblingSums
from service.stores.item_log import LOG_START, ItemLog, LogEntry, LogLostError, LogState, LogTrimmedError

BATCH = 2000
WAIT_SECONDS = 1.0
RETRY_SECONDS = 0.5
REMEMBERED = 10_000  # positions of entries, to tell a log that was set back from the one that was read


class CatalogFollower(Protocol):
    """Something else that must know a version before requests may name it, such as the scorer of new items."""

    async def follow(self, step: CatalogStep) -> None:
        """Take a step; called once for each, in order."""
        ...


@dataclass(frozen=True, slots=True)
class _Ready:
    """A step that is built and not yet everywhere: what the engine shall be told, and where the log is read on."""

    step: CatalogStep
    delta: CatalogDelta
    codes: CodeChange | None
    entries: Sequence[LogEntry]
    position: str


class CatalogSync:
    """Owns the reference to the current `Catalog`."""

    def __init__(
        self,
        catalog: Catalog,
        space: SidSpace,
        log: ItemLog,
        engine: Engine,
        grounder: Grounder,
        siblings: SiblingSums,
        metrics: Metrics,
        *,
        codes: OpenedCodes | None = None,
        compaction: Compaction | None = None,
        followers: Sequence[CatalogFollower] = (),
    ) -> None:
        self._space, self._log, self._engine, self._metrics = space, log, engine, metrics
        self._grounder, self._siblings, self._followers = grounder, siblings, followers
        self._codes = codes
        self._compaction = compaction or Compaction(log, metrics)
        self._recovery = LogRecovery(log)
        self._generation = ""
        self._lost = False
        self._position = LOG_START
        self._ready: _Ready | None = None
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._published = asyncio.Condition()
        self._catalog = catalog

    @property
    def current(self) -> Catalog:
        """The newest version that requests may name."""
        return self._catalog

    @property
    def generation(self) -> str:
        """The log that this replica follows; appends must name it."""
        return self._generation

    async def replay(self) -> None:
        """Catch up with the whole log, from its newest snapshot; returns at its end.

        Raises:
            StorageError: Redis does not answer, or the log begins behind what any snapshot has.
            EngineError: the engine does not take a version.
        """
        state = await self._log.begin()
        self._generation = state.generation
        await self._reload(state)
        while await self._step(wait_seconds=0):
            pass
        if self._catalog.version < state.version:
            raise LogLostError(f"the item log ends at version {self._catalog.version}, it should at {state.version}")

    async def run(self) -> None:
        """Follow the log until cancelled."""
        task = asyncio.current_task()
        while not (task and task.cancelling()):  # Python 3.11's wait_for, which redis-py uses, can lose a cancellation
            try:
                if not await self._step(WAIT_SECONDS):
                    await self._prove_log()
                self._metrics.dependency_up.labels("redis").set(1)
                self._compaction.offer(self._generation, self._catalog, self._position)
            except LogLostError as error:
                await self._recover(error)
            except (StorageError, EngineError) as error:
                if isinstance(error, StorageError):
                    self._metrics.dependency_up.labels("redis").set(0)
                structlog.get_logger().warning("catalog_sync_waits", fault=error.detail)
                await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        """Wait for a snapshot that is being written."""
        await self._compaction.close()

    async def wait_for(self, version: int) -> None:
        """Return once catalogue version ``version`` can be recommended from here."""
        async with self._published:
            await self._published.wait_for(lambda: self._catalog.version >= version)

    async def _step(self, wait_seconds: float) -> bool:
        """Apply the next entries; whether there were any."""
        if self._ready is None:
            page = await self._log.read_after(self._position, BATCH, wait_seconds)
            if page.position == self._position:
                return False
            if not page.entries:  # nothing that can be read
                self._position = page.position
                return True
            self._check_order(page.entries)
            await self._prepare(page.entries, page.entries[-1].version, page.position)
        await self._publish()
        return True

    def _check_order(self, entries: Sequence[LogEntry]) -> None:
        """Entries must follow this version without a gap, or the log is not what was read before."""
        version = self._catalog.version
        for entry in entries:
            if entry.previous != version:
                fault = LogTrimmedError if entry.previous > version else LogLostError
                raise fault(f"an entry follows version {entry.previous}, this replica is at {version}")
            version = entry.version

    async def _prepare(self, entries: Sequence[LogEntry], version: int, position: str) -> None:
        """Build the step once; a failed engine call is tried again with the same, as its answer alone may be lost."""
        if self._catalog.is_wasteful:
            self._catalog = await asyncio.to_thread(self._catalog.compacted)
        with self._metrics.stage("catalog_build"):
            step = self._catalog.advance([entry for entry in entries if self._is_legal(entry)], version)
            smoothing = await self._grounder.run(lambda: self._siblings.mixes(step))
        delta = CatalogDelta(version, self._catalog.version, step.added, step.removed, smoothing)
        for follower in self._followers:
            await follower.follow(step)
        codes = await self._grounder.run(lambda: self._code_change(step))
        self._ready = _Ready(step, delta, codes, entries, position)

    async def _publish(self) -> None:
        ready = self._ready
        assert ready is not None
        with self._metrics.stage("catalog_update"):
            if ready.codes is not None:
                await self._engine.write_tokens(ready.codes.rows)
            await self._engine.update_catalog(ready.delta)
        if ready.codes is not None and self._codes is not None:
            self._codes.apply(ready.codes)
            self._grounder.use(ready.codes.quantizer)
        async with self._published:
            self._catalog, self._position, self._ready = ready.step.catalog, ready.position, None
            self._published.notify_all()
        for entry in ready.entries:
            self._seen[entry.version] = entry.position
            self._metrics.visible_lag.observe(max(0.0, time.time() - entry.seconds))
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def _code_change(self, step: CatalogStep) -> CodeChange | None:
        return self._codes.change(step.codes) if self._codes is not None and step.codes else None

    async def _prove_log(self) -> None:
        """Nothing came: is the log still the one that is followed?"""
        state = await self._log.state()
        if state is None or state.generation != self._generation or state.version < self._catalog.version:
            raise LogLostError("the item log was emptied, replaced or set back")

    async def _recover(self, fault: LogLostError) -> None:
        """Put the log right or follow the new one; what is served stays until then."""
        if not isinstance(fault, LogTrimmedError) and not self._lost:
            self._lost = True  # until it is put right: one loss is told once
            structlog.get_logger().error("item_log_lost", detail=fault.detail, version=self._catalog.version)
            self._metrics.log_lost.inc()
        try:
            if self._ready is not None:
                await self._publish()
            recovered = await self._recovery.recover(self._generation, self._catalog, self._seen)
            await self._become(recovered.state, recovered.version, recovered.position)
            self._generation, self._lost = recovered.generation, False
        except (StorageError, EngineError) as error:
            structlog.get_logger().warning("catalog_sync_waits", fault=error.detail)
            await asyncio.sleep(RETRY_SECONDS)

    async def _reload(self, state: LogState) -> None:
        """Start from the newest readable snapshot."""
        for header in state.snapshots:
            try:
                entries = await self._log.load(header)
            except LogLostError as error:
                structlog.get_logger().error("snapshot_unusable", detail=error.detail)
                continue
            await self._become({entry.item_id: entry for entry in entries}, header.version, header.position, BATCH)
            return

    async def _become(self, state: Mapping[str, LogEntry], version: int, position: str, batch: int = 0) -> None:
        """Go to a given state, in steps of ``batch`` changes (0: in one), each a version that nobody is told of yet."""
        changes = self._catalog.differences(state, version)
        most = version - self._catalog.version
        steps = max(1, min(-(-len(changes) // batch), most)) if batch else 1
        size = -(-len(changes) // steps)
        for left in range(steps - 1, -1, -1):
            part = changes[size * (steps - 1 - left) : size * (steps - left)]
            if part or version - left > self._catalog.version:
                await self._prepare(part, version - left, position)
                await self._publish()
        self._position = position

    def _is_legal(self, entry: LogEntry) -> bool:
        try:
            if entry.op == "put":
                self._space.check(entry.sid)
            elif entry.op == "code":
                if self._codes is None:
                    raise ValueError("this checkpoint has no spare codes")
                self._codes.check(entry)
        except ValueError as error:
            structlog.get_logger().error("item_log_entry_skipped", position=entry.position, fault=str(error))
            return False
        return True
