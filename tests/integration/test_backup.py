"""The drill: post, save, lose everything, restore; the catalogue and the histories are what they were."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from service.errors import StartupError
from service.model.checkpoint import Checkpoint
from service.stores.redis_backup import RedisBackup
from tests.integration.test_replicas import REAL, mapping
from tests.redis_server import RedisServer
from tests.service_doubles import Running, running


async def save(url: str, file: Path) -> int:
    backup = RedisBackup(url, shown_url=url)
    try:
        return await backup.save(file)
    finally:
        await backup.close()


async def restore(url: str, file: Path, *, replace: bool = False) -> int:
    backup = RedisBackup(url, shown_url=url)
    try:
        return await backup.restore(file, replace=replace)
    finally:
        await backup.close()


async def catalogue(service: Running) -> object:
    """What a client can tell of it: its version, every posted item, and which items answer with which SIDs."""
    model = (await service.client.get("/model")).json()
    posted = [(await service.client.get(f"/items/new-{number}")).json() for number in range(30)]
    return model["catalog_version"], posted, await mapping(service)


def contents(url: str) -> dict[bytes, object]:
    """Every key's value; the order inside a hash is Redis's own business, so its bytes are not compared."""
    with redis.Redis.from_url(url) as client:
        readers: dict[bytes, Callable[[bytes], object]] = {
            b"hash": client.hgetall,
            b"stream": client.xrange,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
            b"string": client.get,
        }
        keys = [key for key in client.scan_iter("groundrec:*") if b":lease:" not in key]
        return {key: readers[client.type(key)](key) for key in keys}


async def test_what_was_saved_is_back_after_everything_was_lost(
    checkpoint: Checkpoint, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "groundrec.backup"
    with redis.Redis.from_url(redis_url) as client:
        client.zadd("groundrec:history:42", {"item-3": 1, "item-4": 2})
        client.zadd("groundrec:history:{odd}", {"item-5": 1})
        client.expire("groundrec:history:42", 1000)
    async with running(checkpoint, REAL, redis_url=redis_url) as service:
        await service.post("/items", [{"item_id": f"new-{n}", "title": f"like Title {n}"} for n in range(30)])
        before = await catalogue(service)
        saved = await save(redis_url, file)
    kept = contents(redis_url)
    assert saved == len(kept)

    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        assert await restore(redis_url, file) == saved
        assert contents(redis_url) == kept
        assert 900 < client.ttl("groundrec:history:42") <= 1000
        assert client.zrange("groundrec:history:42", 0, -1) == [b"item-3", b"item-4"]
    async with running(checkpoint, REAL, redis_url=redis_url) as service:
        assert await catalogue(service) == before
        answer = await service.item(item_id="new-31", title="like Title 9")
        assert answer["result"] == "created"
        assert (await service.item(item_id="new-3", title="like Title 3"))["result"] == "unchanged"


async def test_a_backup_moves_to_another_redis(own_redis: RedisServer, redis_url: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.hset("groundrec:{abc}:claims", "x", "1")
        client.set("other:program", "untouched")
    file = tmp_path / "backup"
    await save(redis_url, file)
    await restore(own_redis.url, file)
    assert contents(own_redis.url) == contents(redis_url)
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.keys() == [b"groundrec:{abc}:claims"]


async def test_the_log_is_saved_as_it_was_at_one_moment_while_it_is_written(redis_url: str, tmp_path: Path) -> None:
    """Two keys that a script always changes together are equal in every backup."""
    step = "redis.call('INCR', KEYS[1]); redis.call('INCR', KEYS[2]); redis.call('INCR', KEYS[3])"
    keys = [f"groundrec:{{abc}}:{name}" for name in ("a", "b", "c")]

    def write(client: "redis.Redis") -> None:
        for _ in range(200):
            client.eval(step, 3, *keys)

    with redis.Redis.from_url(redis_url) as client:
        client.eval(step, 3, *keys)
        for number in range(5):
            writing = asyncio.create_task(asyncio.to_thread(write, client))
            await save(redis_url, tmp_path / str(number))
            await writing
            client.flushall()
            await restore(redis_url, tmp_path / str(number))
            values = client.mget(keys)
            assert len(set(values)) == 1, values


async def test_a_redis_in_use_is_not_overwritten_unless_told_so(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with redis.Redis.from_url(redis_url) as client:
        client.set("groundrec:{abc}:a", "saved")
        await save(redis_url, file)
        client.set("groundrec:{abc}:a", "newer")
        client.set("groundrec:{abc}:b", "newer still")
        with pytest.raises(StartupError, match=r"holds 2 keys of groundrec already; give --replace"):
            await restore(redis_url, file)
        assert client.get("groundrec:{abc}:a") == b"newer"
        await restore(redis_url, file, replace=True)
        assert client.keys() == [b"groundrec:{abc}:a"]
        assert client.get("groundrec:{abc}:a") == b"saved"


@pytest.mark.parametrize("damage", ["cut", "bit", "foreign", "newer", "missing"])
async def test_a_damaged_backup_is_refused_before_the_first_key(redis_url: str, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "backup"
    with redis.Redis.from_url(redis_url) as client:
        client.set("groundrec:{abc}:a", "kept")
        await save(redis_url, file)
        lines = file.read_bytes().splitlines(keepends=True)
        header = json.loads(lines[0])
        damaged = {
            "cut": b"".join(lines[:-1]),
            "bit": b"".join(lines).replace(b'"key":"groundrec:{abc}:a"', b'"key":"groundrec:{abc}:b"'),
            "foreign": b"PK\x03\x04 something else",
            "newer": json.dumps({**header, "version": 2}).encode() + b"\n" + b"".join(lines[1:]),
        }
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(damaged[damage])
        with pytest.raises(StartupError, match=r"--file .*backup"):
            await restore(redis_url, file, replace=True)
        assert client.get("groundrec:{abc}:a") == b"kept"


async def test_a_backup_that_failed_leaves_the_last_one_as_it_was(own_redis: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await save(own_redis.url, file)
    before = file.read_bytes()
    own_redis.kill()
    with pytest.raises(Exception, match="save a backup"):
        await save(own_redis.url, file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
