"""The item log in Redis. Items belong to a codebook, so its fingerprint is part of every key, as the hash tag.

    groundrec:{<fingerprint>}:meta          HASH    generation, version, base, snapshots (JSON, newest first)
    groundrec:{<fingerprint>}:items         STREAM  the log since the oldest snapshot: version, previous, op, item_id,
                                                    sid, since, base, body (JSON, see `entry_codec`)
    groundrec:{<fingerprint>}:claims        HASH    item_id -> JSON sid, hash, version, gone, since, counted
    groundrec:{<fingerprint>}:sids          HASH    "c0,c1,.." -> number of posted items that have this SID
    groundrec:{<fingerprint>}:snapshot:..   LIST    a snapshot's compressed chunks
    groundrec:{<fingerprint>}:staged:..     HASH    claims and sids to be, for seconds
    groundrec:{<fingerprint>}:lease:..      STRING  who compacts or republishes, for seconds

Claim and append are one Lua script, hence one step however many replicas post; Redis persists a script as a whole.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson
import structlog
from redis.exceptions import RedisError, ResponseError

from service.errors import StartupError
from service.model.semantic_ids import Sid
from service.stores.entry_codec import body_of, digest, pack_chunks, parse_body, unpack_chunks
from service.stores.item_log import (
    LOG_START,
    Change,
    Claim,
    ItemDraft,
    LogEntry,
    LogLostError,
    LogPage,
    LogState,
    Removal,
    SnapshotHeader,
    position_key,
)
from service.stores.redis_connection import connect, storage_errors
from service.stores.redis_item_scripts import APPEND, BEGIN, REPUBLISH, SAVE

WRITE_SECONDS = 2.0
BLOCK_SECONDS = 1.0
BULK_SECONDS = 30.0
STAGED_SECONDS = 3600  # what was staged and never installed, and what a slow reader may still be reading
STAGED_FIELDS = 5000
LOST = "the item log is not the one this replica follows; it is being put right"


class RedisItemLog:
    """Implements `service.stores.item_log.ItemLog` for one codebook."""

    def __init__(self, url: str, *, fingerprint: str, shown_url: str) -> None:
        self._writer = connect(url, timeout_seconds=WRITE_SECONDS)
        self._reader = connect(url, timeout_seconds=BLOCK_SECONDS + WRITE_SECONDS)
        self._bulk = connect(url, timeout_seconds=BULK_SECONDS)
        self._shown_url = shown_url
        self._prefix = f"groundrec:{{{fingerprint}}}:"
        self._meta, self._stream = self._key("meta"), self._key("items")
        self._keys = [self._meta, self._stream, self._key("claims"), self._key("sids")]
        self._append = self._writer.register_script(APPEND)
        self._begin = self._writer.register_script(BEGIN)
        self._save = self._bulk.register_script(SAVE)
        self._republish = self._bulk.register_script(REPUBLISH)

    async def state(self) -> LogState | None:
        """See `ItemLog.state`."""
        with storage_errors("read the item log's state"):
            return _state(await self._writer.hmget(self._meta, "generation", "version", "base", "snapshots"))

    async def begin(self) -> LogState:
        """See `ItemLog.begin`."""
        with storage_errors("begin the item log"):
            state = _state(await self._begin([self._meta], [uuid.uuid4().hex]))
        assert state is not None
        return state

    async def append(self, generation: str, changes: Sequence[Change], floor: int = 0) -> list[Claim]:
        """See `ItemLog.append`."""
        arguments = [generation, str(floor), str(len(changes))]
        for change in changes:
            arguments += _arguments(change)
        with storage_errors("append to the item log"):
            answer = await self._append(self._keys, arguments)
        if answer == "lost":
            raise LogLostError(LOST)
        return [Claim(result, _sid(sid), int(version) if version else None) for result, sid, version in answer]

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """See `ItemLog.read_after`; waits `BLOCK_SECONDS` at most."""
        block = int(1000 * min(wait_seconds, BLOCK_SECONDS)) or None
        with storage_errors("read the item log"):
            answer: Any = await self._reader.xread({self._stream: position}, count=limit, block=block)
        rows = answer[0][1] if answer else []
        entries = (_read_entry(place, fields) for place, fields in rows)
        return LogPage(tuple(entry for entry in entries if entry), rows[-1][0] if rows else position)

    async def load(self, header: SnapshotHeader) -> list[LogEntry]:
        """See `ItemLog.load`."""
        with storage_errors("read a snapshot of the item log"):
            chunks = await self._bulk.execute_command("LRANGE", header.key, 0, -1, NEVER_DECODE=True)
        try:
            return unpack_chunks(chunks, header.sha256) if header.items else []
        except ValueError as error:
            raise LogLostError(f"the snapshot {header.key} cannot be used: {error}") from None

    async def save(self, state: LogState, header: SnapshotHeader, entries: Sequence[LogEntry], kept: int) -> bool:
        """See `ItemLog.save`."""
        header = await self._stage(header, entries)
        snapshots = (header, *state.snapshots)
        keep_from = snapshots[kept - 1].position if len(snapshots) >= kept else LOG_START
        arguments = [state.generation, _headers(state.snapshots), _headers(snapshots[:kept]), _behind(keep_from)]
        with storage_errors("save a snapshot of the item log"):
            saved = bool(await self._save([self._meta, self._stream, header.key], arguments))
            for old in snapshots[kept:] if saved else ():
                await self._bulk.expire(old.key, STAGED_SECONDS)
        return saved

    async def republish(self, header: SnapshotHeader, entries: Sequence[LogEntry]) -> bool:
        """See `ItemLog.republish`."""
        header = await self._stage(replace(header, position=LOG_START), entries)
        claims, sids = _claims(entries)
        staged = [self._key(f"staged:{uuid.uuid4().hex}") for _ in range(2)]
        await self._stage_hash(staged[0], claims)
        await self._stage_hash(staged[1], sids)
        arguments = [uuid.uuid4().hex, str(header.version), _headers([header])]
        with storage_errors("republish the item log"):
            return bool(await self._republish([*self._keys, header.key, *staged], arguments))

    async def lease(self, name: str, seconds: int) -> bool:
        """See `ItemLog.lease`."""
        with storage_errors("take a lease"):
            return bool(await self._writer.set(self._key(f"lease:{name}"), "taken", nx=True, ex=seconds))

    async def check(self, *, allow_volatile: bool) -> list[str]:
        """See `ItemLog.check`."""
        try:
            await self._writer.ping()
        except (RedisError, OSError, TimeoutError) as error:
            raise StartupError(f"--redis-url {self._shown_url}: Redis does not answer: {error}") from None
        try:
            config = {name: await self._config(name) for name in ("appendonly", "save", "maxmemory-policy")}
        except ResponseError:
            return ["Redis forbids CONFIG GET: whether it keeps acknowledged items is not known"]
        fault = _volatility(config)
        if fault and not allow_volatile:
            raise StartupError(f"--redis-url {self._shown_url}: {fault}, or accept the loss with --allow-volatile")
        if fault:
            return [f"posted items can be lost: {fault}"]
        if config["appendonly"] == "no":
            return ["Redis keeps snapshots only: items posted since the last one are lost if it is killed"]
        return []

    async def close(self) -> None:
        """See `ItemLog.close`."""
        for client in (self._writer, self._reader, self._bulk):
            await client.aclose()

    def _key(self, name: str) -> str:
        return self._prefix + name

    async def _config(self, name: str) -> str:
        return str((await self._writer.config_get(name)).get(name, ""))

    async def _stage(self, header: SnapshotHeader, entries: Sequence[LogEntry]) -> SnapshotHeader:
        chunks = list(pack_chunks(entries)) or [b""]  # an empty list is no key in Redis
        key = self._key(f"snapshot:{header.version}-{uuid.uuid4().hex[:8]}")
        with storage_errors("write a snapshot of the item log"):
            for chunk in chunks:
                await self._bulk.rpush(key, chunk)
            await self._bulk.expire(key, STAGED_SECONDS)
        return replace(header, key=key, items=len(entries), sha256=digest(chunks))

    async def _stage_hash(self, key: str, fields: Mapping[str, Any]) -> None:
        names = list(fields)
        with storage_errors("write the claims of the item log"):
            for first in range(0, len(names), STAGED_FIELDS):
                part = {name: fields[name] for name in names[first : first + STAGED_FIELDS]}
                await self._bulk.hset(key, mapping=part)
                await self._bulk.expire(key, STAGED_SECONDS)


def _volatility(config: Mapping[str, str]) -> str | None:
    """Why the log could vanish. The log never expires, so only ``allkeys-*`` policies can evict it."""
    if config["appendonly"] == "no" and not config["save"]:
        return "persistence is off; set `appendonly yes`"
    policy = config["maxmemory-policy"]
    if policy.startswith("allkeys"):
        return f"maxmemory-policy {policy} may evict the item log; set `maxmemory-policy noeviction`"
    return None


def _arguments(change: Change) -> list[str]:
    """Kind and eight fields, as `APPEND` reads them."""
    if isinstance(change, ItemDraft):
        base = (change.base.content_hash, _sid_text(change.base.sid)) if change.base else ("", "")
        prefix = "".join(f"{code}," for code in change.prefix)
        codes = (" ".join(map(str, change.free)), " ".join(map(str, change.taken)))
        body = body_of(change.item, change.content_hash, change.vector)
        return ["put", change.item.item_id, change.content_hash, *base, prefix, *codes, body]
    if isinstance(change, Removal):
        return ["remove", change.item_id, _sid_text(change.base.sid) if change.base else "", *[""] * 6]
    entry = change.entry
    body = body_of(entry.item, entry.content_hash, entry.vector) if entry.item else ""
    head = ["restore", entry.item_id, str(change.ceiling), entry.op, _sid_text(entry.sid), entry.content_hash]
    return [*head, str(entry.since), str(int(entry.base)), body]


def _read_entry(position: str, fields: Mapping[str, str]) -> LogEntry | None:
    try:
        item, content_hash, vector = parse_body(fields["body"]) if fields["body"] else (None, "", b"")
        head = (int(fields["version"]), int(fields["previous"]), position, fields["op"], fields["item_id"])
        tail = (_sid(fields["sid"]) or (), int(fields["since"]), vector, fields["base"] == "1")
        return LogEntry(*head, item, content_hash, *tail)  # type: ignore[arg-type]
    except (KeyError, ValueError) as error:
        # One foreign entry must not stop every replica for ever.
        structlog.get_logger().error("item_log_entry_skipped", position=position, fault=repr(error)[:200])
        return None


def _claims(entries: Sequence[LogEntry]) -> tuple[dict[str, str], dict[str, int]]:
    claims: dict[str, str] = {}
    sids: dict[str, int] = {}
    for entry in entries:
        counted, sid = entry.op == "put" and not entry.base, _sid_text(entry.sid)
        fields = {"sid": sid, "hash": entry.content_hash, "version": entry.version, "gone": entry.op == "delete"}
        claims[entry.item_id] = json.dumps(fields | {"since": entry.since, "counted": counted})
        if counted:
            sids[sid] = sids.get(sid, 0) + 1
    return claims, sids


def _state(row: Sequence[str | None]) -> LogState | None:
    generation, version, base, snapshots = row
    if generation is None or version is None:
        return None
    headers = tuple(SnapshotHeader(**fields) for fields in json.loads(snapshots or "[]"))
    return LogState(generation, int(version), int(base or 0), headers)


def _headers(headers: Sequence[SnapshotHeader]) -> str:
    return orjson.dumps([asdict(header) for header in headers]).decode() if headers else "[]"


def _behind(position: str) -> str:
    time, sequence = position_key(position)
    return f"{time}-{sequence + 1}"


def _sid_text(sid: Sid) -> str:
    return ",".join(map(str, sid))


def _sid(text: str) -> Sid | None:
    return tuple(int(code) for code in text.split(",")) if text else None
