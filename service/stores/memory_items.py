"""The item log in the process: for tests, and as the readable twin of the Redis scripts.

Nothing here survives a restart, so the service never chooses it by itself. One event loop, so a method without an await
is atomic.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid
from service.stores.entry_codec import digest, pack_chunks, unpack_chunks
from service.stores.item_log import (
    LOG_START,
    Change,
    Claim,
    ItemDraft,
    LogEntry,
    LogLostError,
    LogPage,
    LogState,
    Op,
    Removal,
    Restoration,
    SnapshotHeader,
    position_key,
)


@dataclass(frozen=True, slots=True)
class _Held:
    """What the log knows of an item; ``counted``: its SID is counted as held by a posted item."""

    sid: Sid
    content_hash: str
    version: int
    gone: bool
    since: int
    counted: bool


class MemoryItemLog:
    """Implements `ItemLog`."""

    def __init__(self) -> None:
        self._appended = asyncio.Event()
        self._clock = 0, 0
        self._leases: set[str] = set()
        self.flush()

    def flush(self) -> None:
        """Forget everything, as an emptied Redis does."""
        self._state: LogState | None = None
        self._entries: list[LogEntry] = []
        self._claims: dict[str, _Held] = {}
        self._held: Counter[Sid] = Counter()
        self._chunks: dict[str, list[bytes]] = {}

    async def state(self) -> LogState | None:
        """See `ItemLog.state`."""
        return self._state

    async def begin(self) -> LogState:
        """See `ItemLog.begin`."""
        self._state = self._state or LogState(uuid.uuid4().hex, 0, 0)
        return self._state

    async def append(self, generation: str, changes: Sequence[Change], floor: int = 0) -> list[Claim]:
        """See `ItemLog.append`."""
        if self._state is None or self._state.generation != generation:
            raise LogLostError("the item log is not the one this replica follows; it is being put right")
        if floor and floor >= self._state.version:
            self._write(LogEntry(floor + 1, self._state.version, "", "mark"))
        answers = [self._apply(change) for change in changes]
        self._appended.set()
        return answers

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """See `ItemLog.read_after`."""
        page = self._behind(position)[:limit]
        if not page and wait_seconds:
            self._appended.clear()
            try:
                await asyncio.wait_for(self._appended.wait(), wait_seconds)
            except TimeoutError:
                return LogPage((), position)
            page = self._behind(position)[:limit]
        return LogPage(tuple(page), page[-1].position if page else position)

    async def load(self, header: SnapshotHeader) -> list[LogEntry]:
        """See `ItemLog.load`."""
        try:
            return unpack_chunks(self._chunks[header.key], header.sha256) if header.items else []
        except (KeyError, ValueError) as error:
            raise LogLostError(f"the snapshot {header.key} cannot be used: {error}") from None

    async def save(self, state: LogState, header: SnapshotHeader, entries: Sequence[LogEntry], kept: int) -> bool:
        """See `ItemLog.save`."""
        if self._state is None or (state.generation, state.snapshots) != (
            self._state.generation,
            self._state.snapshots,
        ):
            return False
        snapshots = (self._stage(header, entries), *state.snapshots)[:kept]
        self._state = replace(self._state, snapshots=snapshots)
        self._entries = self._behind(snapshots[-1].position if len(snapshots) == kept else LOG_START)
        return True

    async def republish(self, header: SnapshotHeader, entries: Sequence[LogEntry]) -> bool:
        """See `ItemLog.republish`."""
        if self._state is not None:
            return False
        self.flush()
        header = self._stage(replace(header, position=LOG_START), entries)
        self._state = LogState(uuid.uuid4().hex, header.version, header.version, (header,))
        for entry in entries:
            self._hold(entry, entry.version)
        return True

    async def lease(self, name: str, seconds: int) -> bool:
        """See `ItemLog.lease`; nobody else is here, so it ends at once."""
        return True

    async def check(self, *, allow_volatile: bool) -> list[str]:
        """See `ItemLog.check`."""
        return [] if allow_volatile else ["the item log lives in memory"]

    async def close(self) -> None:
        """See `ItemLog.close`."""

    def _apply(self, change: Change) -> Claim:
        if isinstance(change, ItemDraft):
            return self._put(change)
        return self._remove(change) if isinstance(change, Removal) else self._restore(change)

    def _put(self, draft: ItemDraft) -> Claim:
        item_id, base = draft.item.item_id, draft.base
        held = self._claims.get(item_id)
        live = not held.gone if held else base is not None
        known_hash = held.content_hash if held else base.content_hash if base else ""
        known = base.sid if base else held.sid if held else None
        if live and known_hash == draft.content_hash:
            return Claim("unchanged", known)
        keeps = known is not None and (base is not None or known[:-1] == draft.prefix)
        sid = known if keeps and known is not None else self._choose(draft)
        since = held.since if held and live and held.sid == sid else None
        version = self._append(
            "put", item_id, sid, since, content=(draft.item, draft.content_hash, draft.vector), base=bool(base)
        )
        return Claim("updated" if live else "created", sid, version)

    def _remove(self, removal: Removal) -> Claim:
        held, base = self._claims.get(removal.item_id), removal.base
        if not (not held.gone if held else base is not None):
            return Claim("absent", held.sid if held else None)
        sid = base.sid if base else held.sid if held else ()
        return Claim("deleted", sid, self._append("delete", removal.item_id, sid, None, base=base is not None))

    def _restore(self, change: Restoration) -> Claim:
        entry, held = change.entry, self._claims.get(change.entry.item_id)
        if held and held.version > change.ceiling:
            return Claim("conflict", held.sid)
        content = (entry.item, entry.content_hash, entry.vector)
        version = self._append(entry.op, entry.item_id, entry.sid, entry.since, content=content, base=entry.base)
        return Claim("restored", entry.sid or None, version)

    def _append(
        self,
        op: Op,
        item_id: str,
        sid: Sid,
        since: int | None,
        *,
        content: tuple[ItemRecord | None, str, bytes] | None = None,
        base: bool = False,
    ) -> int:
        assert self._state is not None
        version = self._state.version + 1
        item, content_hash, vector = content or (None, "", b"")
        entry = LogEntry(
            version,
            version - 1,
            "",
            op,
            item_id,
            item,
            content_hash,
            sid,
            since or version,
            vector,
            base,
        )
        self._hold(entry, version)
        self._write(entry)
        return version

    def _write(self, entry: LogEntry) -> None:
        assert self._state is not None
        milliseconds, sequence = int(1000 * time.time()), self._clock[1] + 1
        self._clock = max(milliseconds, self._clock[0]), sequence
        self._entries.append(replace(entry, position=f"{self._clock[0]}-{sequence}"))
        self._state = replace(self._state, version=entry.version)

    def _hold(self, entry: LogEntry, version: int) -> None:
        before = self._claims.get(entry.item_id)
        if before and before.counted and (entry.op != "put" or before.sid != entry.sid):
            self._held[before.sid] -= 1
        counted = entry.op == "put" and not entry.base
        if counted and not (before and before.counted and before.sid == entry.sid):
            self._held[entry.sid] += 1
        if entry.op == "reset":
            self._claims.pop(entry.item_id, None)
            return
        gone = entry.op == "delete"
        self._claims[entry.item_id] = _Held(entry.sid, entry.content_hash, version, gone, entry.since, counted)

    def _choose(self, draft: ItemDraft) -> Sid:
        places = [(code, 0) for code in draft.free] + [(code, 1) for code in draft.taken]
        sids = [((*draft.prefix, code), extra) for code, extra in places]
        return min(sids, key=lambda place: self._held[place[0]] + place[1])[0]

    def _behind(self, position: str) -> list[LogEntry]:
        return [entry for entry in self._entries if position_key(entry.position) > position_key(position)]

    def _stage(self, header: SnapshotHeader, entries: Sequence[LogEntry]) -> SnapshotHeader:
        chunks = list(pack_chunks(entries)) or [b""]
        key = f"snapshot:{header.version}-{len(self._chunks)}"
        self._chunks[key] = chunks
        return replace(header, key=key, items=len(entries), sha256=digest(chunks))
