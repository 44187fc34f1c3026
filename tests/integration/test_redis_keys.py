"""The table of Redis keys in service/README.md is a contract: no store writes a key that it does not name."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from service.app import Parts
from service.model.checkpoint import Checkpoint
from service.stores.redis_feedback import RedisFeedback
from service.stores.redis_items import RedisItemLog
from tests.integration.test_log_recovery import film, replica, until
from tests.redis_server import RedisServer
from tests.service_doubles import running

README = Path(__file__).resolve().parents[2] / "service" / "README.md"
KINDS = {"sorted set": "zset", "stream": "stream", "hash": "hash", "list": "list", "string": "string"}


def documented() -> dict[str, str]:
    """Redis' name of each row's type, by a pattern of the row's keys."""
    rows = re.findall(r"^\| (`groundrec:[^|]+) \| ([a-z ]+) \|", README.read_text("utf-8"), re.MULTILINE)
    return {_pattern(key): KINDS[kind] for keys, kind in rows for key in re.findall(r"`(groundrec:[^`]+)`", keys)}


def _pattern(key: str) -> str:
    """``<name>`` and ``…`` stand for anything."""
    parts = re.split(r"<[^>]+>|…", key)
    return ".+".join(map(re.escape, parts))


def row_of(key: str) -> str | None:
    return next((pattern for pattern in documented() if re.fullmatch(pattern, key)), None)


@contextmanager
def written(server: RedisServer) -> Iterator[set[str]]:
    """Every key that is written meanwhile, also those that are gone at the end; filled when the block ends."""
    keys: set[str] = set()
    with redis.Redis(port=server.port, decode_responses=True) as client, client.pubsub() as events:
        client.config_set("notify-keyspace-events", "KA")
        events.psubscribe("__keyspace@0__:*")
        yield keys
        while message := events.get_message(timeout=0.5):
            if message["type"] == "pmessage":
                keys.add(message["channel"].partition(":")[2])


async def users_and_items(checkpoint: Checkpoint, url: str) -> None:
    """What requests make the stores write."""
    feedback = RedisFeedback(url, timeout_seconds=5, max_entries=100)
    async with running(checkpoint, Parts(feedback=feedback), redis_url=url) as service:
        await service.item(item_id="new", title="like Title 7")
        answer = await service.recommend(user_id="42")
        events = [
            {"user_id": "42", "item_id": "item-9", "event": "click", "event_id": "a"},
            {"user_id": "42", "item_id": "item-8", "event": "view", "recommendation_id": answer["recommendation_id"]},
        ]
        assert (await service.post("/events", events))["recorded"] == 2
        assert (await service.client.delete("/items/new")).status_code == 200


async def snapshots_and_a_loss(checkpoint: Checkpoint, server: RedisServer) -> None:
    """What compaction and the recovery of a lost log write."""
    log = RedisItemLog(server.url, fingerprint="abc", shown_url=server.url)
    async with replica(checkpoint, log, every=5) as one:
        for number in range(12):
            await one.post(film(number))
        await one.sync.close()
        generation = one.sync.generation
        with redis.Redis(port=server.port) as client:
            await asyncio.to_thread(client.flushall)
        await until(lambda: one.sync.generation != generation)
        await one.post(film(99))
    await log.close()


async def test_every_key_that_is_written_is_in_the_readme_and_every_row_of_it_is_written(
    checkpoint: Checkpoint, own_redis: RedisServer
) -> None:
    found = dict[str, str]()
    with written(own_redis) as keys:
        await users_and_items(checkpoint, own_redis.url)
        with redis.Redis(port=own_redis.port, decode_responses=True) as client:
            found |= {key: str(client.type(key)) for key in client.scan_iter("*")}
        await snapshots_and_a_loss(checkpoint, own_redis)
        with redis.Redis(port=own_redis.port, decode_responses=True) as client:
            found |= {key: str(client.type(key)) for key in client.scan_iter("*")}
    assert [key for key in sorted(keys) if row_of(key) is None] == []
    assert {row_of(key) for key in keys} == set(documented())
    assert {key: kind for key, kind in found.items() if kind != documented()[row_of(key) or ""]} == {}


@pytest.mark.parametrize("key", ["groundrec:other", "groundrec:{abc}:queue", "history:42"])
def test_an_unknown_key_would_be_noticed(key: str) -> None:
    assert row_of(key) is None and len(documented()) >= 8
