"""Every key of ours, out of a Redis and back into one.

Keys with one hash tag (the item log of one codebook: log, claims, SIDs, snapshots) are read by one script and written
by one script, hence at one moment; what they mean is not known here. Leases are left out: they belong to processes.
DUMP and RESTORE carry Redis's own serialisation, which a Redis reads that is not older than the one that wrote it.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

from service.backup import BackupWriter, SavedKey, read_backup, verify_backup
from service.errors import StartupError
from service.stores.redis_connection import connect, storage_errors

PREFIX = "groundrec:"
TAG = re.compile(r"groundrec:\{([^}]+)\}:")
BULK_SECONDS, TRIES, AT_ONCE = 120.0, 20, 32

# KEYS: what to read. Answers the time in milliseconds, then per key its dump and its remaining time.
DUMP_SCRIPT = """
local now = redis.call('TIME')
local answer = {tostring(now[1]), tostring(now[2])}
for _, key in ipairs(KEYS) do
  answer[#answer + 1] = redis.call('DUMP', key)
  answer[#answer + 1] = tostring(redis.call('PTTL', key))
end
return answer
"""
# KEYS: what to write. ARGV: per key its expiry (0: never) and its dump.
RESTORE_SCRIPT = """
for i, key in ipairs(KEYS) do
  redis.call('RESTORE', key, ARGV[2 * i - 1], ARGV[2 * i], 'REPLACE', 'ABSTTL')
end
return #KEYS
"""


class RedisBackup:
    """Saves and restores; every failure names ``shown_url`` or the file."""

    def __init__(self, url: str, *, shown_url: str) -> None:
        self._redis = connect(url, timeout_seconds=BULK_SECONDS)
        self._shown_url = shown_url

    async def save(self, file: Path, progress: Callable[[int], None] = lambda keys: None) -> int:
        """Write all our keys to ``file``; returns how many.

        Raises:
            StartupError: the file cannot be written, or the log's keys never held still.
            StorageError: Redis failed; no file is left.
        """
        with storage_errors("save a backup"), BackupWriter(file, int(time.time() * 1000)) as writer:
            groups, single = _grouped(await self._keys())
            for tag in groups:
                for saved in await self._moment(tag):
                    writer.add(saved)
                progress(writer.keys)
            async for saved in self._each(single):
                writer.add(saved)
                progress(writer.keys)
            return writer.keys

    async def restore(self, file: Path, *, replace: bool, progress: Callable[[int], None] = lambda keys: None) -> int:
        """Put back what ``file`` holds, and with ``replace`` nothing else; returns the keys written.

        Raises:
            StartupError: the file is damaged, or the Redis holds keys of ours already and ``replace`` is not given.
            StorageError: Redis failed; the same command with ``replace`` begins anew.
        """
        verify_backup(file)
        with storage_errors("restore a backup"):
            present = await self._keys()
            if present and not replace:
                raise StartupError(
                    f"--redis-url {self._shown_url}: holds {len(present)} keys of groundrec already; "
                    "give --replace to lose them"
                )
            for page in _pages(present, 500):
                await asyncio.gather(*(self._redis.unlink(key) for key in page))
            return await self._write(file, progress)

    async def close(self) -> None:
        """Let the connections go."""
        await self._redis.aclose()

    async def _write(self, file: Path, progress: Callable[[int], None]) -> int:
        now, written = time.time() * 1000, 0
        groups: dict[str, list[SavedKey]] = defaultdict(list)
        waiting: list[SavedKey] = []
        for saved in read_backup(file):
            if saved.expires_at_ms is not None and saved.expires_at_ms <= now:
                continue
            if tag := _tag(saved.key):
                groups[tag].append(saved)
            else:
                waiting.append(saved)
            if len(waiting) == AT_ONCE:
                written += await self._put_each(waiting)
                waiting = []
                progress(written)
        written += await self._put_each(waiting)
        for group in groups.values():
            written += await self._put(group)
            progress(written)
        return written

    async def _put_each(self, keys: Sequence[SavedKey]) -> int:
        return sum(await asyncio.gather(*(self._put([saved]) for saved in keys)))

    async def _put(self, keys: Sequence[SavedKey]) -> int:
        values = [value for saved in keys for value in (saved.expires_at_ms or 0, saved.dump)]
        names = [saved.key for saved in keys]
        try:
            return int(await self._redis.eval(RESTORE_SCRIPT, len(names), *names, *values))
        except ResponseError as error:
            if "version or checksum" in str(error):
                hint = "it is older than the one that was saved; restore into a Redis that is not"
                raise StartupError(f"--redis-url {self._shown_url}: {hint}") from None
            raise

    async def _moment(self, tag: str) -> list[SavedKey]:
        """All keys of a tag as they were at one moment: read again if keys came or went meanwhile."""
        for _ in range(TRIES):
            keys = _grouped(await self._keys(f"{PREFIX}{{{tag}}}:*"))[0].get(tag, [])
            saved = await self._dump(keys)
            if len(saved) == len(keys) and keys == _grouped(await self._keys(f"{PREFIX}{{{tag}}}:*"))[0].get(tag, []):
                return saved
        raise StartupError(f"--redis-url {self._shown_url}: the keys of {tag} never held still; save again")

    async def _each(self, keys: Sequence[str]) -> AsyncIterator[SavedKey]:
        for page in _pages(keys, AT_ONCE):
            for found in await asyncio.gather(*(self._dump([key]) for key in page)):
                for saved in found:
                    yield saved

    async def _dump(self, keys: Sequence[str]) -> list[SavedKey]:
        """Those of ``keys`` that are still there."""
        if not keys:
            return []
        answer = await self._redis.execute_command("EVAL", DUMP_SCRIPT, len(keys), *keys, NEVER_DECODE=True)
        now = int(answer[0]) * 1000 + int(answer[1]) // 1000
        pairs = zip(keys, answer[2::2], map(int, answer[3::2]), strict=True)
        return [SavedKey(key, now + left if left >= 0 else None, dump) for key, dump, left in pairs if dump]

    async def _keys(self, pattern: str = PREFIX + "*") -> list[str]:
        found: set[str] = {key async for key in self._scan(pattern)}
        return sorted(key for key in found if ":lease:" not in key)

    def _scan(self, pattern: str) -> Any:
        return self._redis.scan_iter(match=pattern, count=1000)


def _pages(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _tag(key: str) -> str | None:
    match = TAG.match(key)
    return match[1] if match else None


def _grouped(keys: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Keys by hash tag, and those without one."""
    groups: dict[str, list[str]] = defaultdict(list)
    single: list[str] = []
    for key in keys:
        tag = _tag(key)
        (groups[tag] if tag else single).append(key)
    return groups, single
