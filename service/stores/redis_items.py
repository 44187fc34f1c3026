"""The item log in Redis. Items belong to a codebook, so its fingerprint is part of every key.

    groundrec:{<fingerprint>}:items    STREAM  the log; field ``entry``: JSON item_id, title, description, attributes,
                                               content_hash, sid, op
    groundrec:{<fingerprint>}:claims   HASH    item_id -> JSON sid, content_hash (the newest entry of each item)
    groundrec:{<fingerprint>}:sids     HASH    "c0,c1,.." -> item_id that took this SID first

Claim and append are one Lua script, hence one step however many replicas post; Redis persists a script as a whole.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError, ResponseError

from service.errors import StartupError
from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid
from service.stores.base import Claim, ItemDraft, LogEntry, LogPage
from service.stores.redis_connection import connect, storage_errors

WRITE_SECONDS = 2.0
BLOCK_SECONDS = 1.0

# ARGV: item_id, content hash, entry as JSON without sid and op, base hash, base SID, prefix of the candidates, SIDs...
CLAIM_SCRIPT = """
local claims, sids, items = KEYS[1], KEYS[2], KEYS[3]
local id, hash, base_sid, prefix = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local known, known_hash = base_sid, ARGV[4]
local claim = redis.call('HGET', claims, id)
if claim then
  claim = cjson.decode(claim)
  known, known_hash = claim.sid, claim.content_hash
  if base_sid ~= '' then known = base_sid end
end
if known ~= '' and known_hash == hash then
  return {'unchanged', known, '', ''}
end
local sid, collides = known, ''
local keeps = known ~= '' and (base_sid ~= '' or (string.match(known, '^(.*,)') or '') == prefix)
if not keeps then
  sid = nil
  for i = 7, #ARGV do
    if redis.call('HEXISTS', sids, ARGV[i]) == 0 then
      sid = ARGV[i]
      break
    end
  end
  if not sid then
    sid = ARGV[7]
    collides = redis.call('HGET', sids, sid)
  end
  if known ~= '' and redis.call('HGET', sids, known) == id then
    redis.call('HDEL', sids, known)
  end
end
local op = known == '' and 'created' or 'updated'
redis.call('HSETNX', sids, sid, id)
redis.call('HSET', claims, id, cjson.encode({sid = sid, content_hash = hash}))
local entry = string.sub(ARGV[3], 1, -2) .. ',"sid":[' .. sid .. '],"op":"' .. op .. '"}'
return {op, sid, redis.call('XADD', items, '*', 'entry', entry), collides}
"""


class RedisItemLog:
    """Implements `service.stores.base.ItemLog` for one codebook."""

    def __init__(self, url: str, *, fingerprint: str, shown_url: str) -> None:
        self._writer = connect(url, timeout_seconds=WRITE_SECONDS)
        self._reader = connect(url, timeout_seconds=BLOCK_SECONDS + WRITE_SECONDS)
        self._script = self._writer.register_script(CLAIM_SCRIPT)
        self._shown_url = shown_url
        self._stream = f"groundrec:{{{fingerprint}}}:items"
        self._keys = [f"groundrec:{{{fingerprint}}}:{name}" for name in ("claims", "sids", "items")]

    async def claim_and_append(self, draft: ItemDraft, candidates: Sequence[Sid]) -> Claim:
        """See `ItemLog.claim_and_append`."""
        base_sid = _sid_text(draft.base_sid) if draft.base_sid is not None else ""
        prefix = "".join(f"{code}," for code in candidates[0][:-1])
        head = [draft.item.item_id, draft.content_hash, _entry_text(draft), draft.base_hash or "", base_sid, prefix]
        with storage_errors("append to the item log"):
            answer = await self._script(self._keys, [*head, *map(_sid_text, candidates)])
        result, sid, position, collides_with = answer
        return Claim(result, _sid(sid), position or None, collides_with or None)

    async def read_after(self, position: str, limit: int, wait_seconds: float) -> LogPage:
        """See `ItemLog.read_after`; waits `BLOCK_SECONDS` at most."""
        block = int(1000 * min(wait_seconds, BLOCK_SECONDS)) or None
        with storage_errors("read the item log"):
            answer: Any = await self._reader.xread({self._stream: position}, count=limit, block=block)
        rows = answer[0][1] if answer else []
        entries = (_read_entry(place, fields) for place, fields in rows)
        return LogPage(tuple(entry for entry in entries if entry), rows[-1][0] if rows else position)

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
        await self._writer.aclose()
        await self._reader.aclose()

    async def _config(self, name: str) -> str:
        return str((await self._writer.config_get(name)).get(name, ""))


def _volatility(config: Mapping[str, str]) -> str | None:
    """Why the log could vanish. The log never expires, so only ``allkeys-*`` policies can evict it."""
    if config["appendonly"] == "no" and not config["save"]:
        return "persistence is off; set `appendonly yes`"
    policy = config["maxmemory-policy"]
    if policy.startswith("allkeys"):
        return f"maxmemory-policy {policy} may evict the item log; set `maxmemory-policy noeviction`"
    return None


def _entry_text(draft: ItemDraft) -> str:
    item = draft.item
    fields: dict[str, Any] = {"item_id": item.item_id, "title": item.title, "description": item.description}
    fields |= {"attributes": dict(item.attributes), "content_hash": draft.content_hash}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _read_entry(position: str, fields: Mapping[str, str]) -> LogEntry | None:
    try:
        row = json.loads(fields["entry"])
        item = ItemRecord(row["item_id"], row["title"], row["description"], row["attributes"])
        return LogEntry(position, item, row["content_hash"], tuple(int(code) for code in row["sid"]))
    except (KeyError, TypeError, ValueError) as error:
        # One foreign entry must not stop every replica for ever.
        structlog.get_logger().error("item_log_entry_skipped", position=position, fault=repr(error)[:200])
        return None


def _sid_text(sid: Sid) -> str:
    return ",".join(map(str, sid))


def _sid(text: str) -> Sid:
    return tuple(int(code) for code in text.split(","))
