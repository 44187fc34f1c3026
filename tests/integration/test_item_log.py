"""The promises of `service.stores.item_log`, kept alike by Redis and by the store in memory."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis

from service.errors import StorageFullError
from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid
from service.stores.item_log import (
    LOG_START,
    BaseClaim,
    Change,
    Claim,
    ItemDraft,
    ItemLog,
    LogEntry,
    LogLostError,
    Removal,
    Restoration,
    SnapshotHeader,
    latest,
    position_key,
)
from service.stores.memory_items import MemoryItemLog
from service.stores.redis_items import RedisItemLog
from tests.redis_server import RedisServer

UNDER_A: tuple[Sid, tuple[int, ...]] = ((1, 2), (0, 5, 3))
UNDER_B: tuple[Sid, tuple[int, ...]] = ((4, 4), (0, 1))
BASE = BaseClaim("own", (9, 9, 9))
HEADER = SnapshotHeader(0, LOG_START, "", 0, "")


def redis_log(url: str) -> RedisItemLog:
    return RedisItemLog(url, fingerprint="abc", shown_url=url)


@pytest.fixture(params=["redis", "memory"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[ItemLog]:
    store: ItemLog = MemoryItemLog()
    if request.param == "redis":
        store = redis_log(request.getfixturevalue("redis_url"))
    await store.begin()
    yield store
    await store.close()


def draft(
    item_id: str,
    text: str = "text",
    where: tuple[Sid, tuple[int, ...]] = UNDER_A,
    taken: tuple[int, ...] = (),
    base: BaseClaim | None = None,
) -> ItemDraft:
    item = ItemRecord(item_id, text, "", {"year": 1999, "genres": ["Ä", '"']})
    return ItemDraft(item, f"hash of {text}", b"\x00\xff" + text.encode(), where[0], where[1], taken, base)


async def write(log: ItemLog, *changes: Change, floor: int = 0) -> list[Claim]:
    state = await log.state()
    assert state is not None
    return await log.append(state.generation, changes, floor)


async def entries_of(log: ItemLog, position: str = LOG_START) -> list[LogEntry]:
    return list((await log.read_after(position, 10_000, 0)).entries)


async def test_new_items_take_the_nearest_code_that_nobody_has(log: ItemLog) -> None:
    claims = await write(log, *(draft(f"item-{n}") for n in range(3)))
    assert [claim.sid for claim in claims] == [(1, 2, 0), (1, 2, 5), (1, 2, 3)]
    assert {claim.result for claim in claims} == {"created"}
    assert [claim.version for claim in claims] == [1, 2, 3]


async def test_when_all_codes_are_taken_the_emptiest_is_shared_and_the_nearest_of_those(log: ItemLog) -> None:
    claims = await write(log, *(draft(f"item-{n}", where=((1, 2), (0, 5)), taken=(7,)) for n in range(7)))
    assert [claim.sid and claim.sid[-1] for claim in claims] == [0, 5, 0, 5, 7, 0, 5]


async def test_the_same_content_is_unchanged_and_leaves_no_entry(log: ItemLog) -> None:
    first, second = await write(log, draft("a"), draft("a"))
    assert (second.result, second.sid, second.version) == ("unchanged", first.sid, None)
    assert len(await entries_of(log)) == 1


async def test_new_content_under_the_same_prefix_keeps_the_sid_and_its_age(log: ItemLog) -> None:
    first, _, second = await write(log, draft("a"), draft("b"), draft("a", "other", ((1, 2), (5, 3))))
    assert (second.result, second.sid) == ("updated", first.sid)
    assert [entry.since for entry in await entries_of(log)] == [1, 2, 1]


async def test_new_content_under_another_prefix_moves_and_frees_the_old_sid(log: ItemLog) -> None:
    _, moved, heir = await write(log, draft("a"), draft("a", "other", UNDER_B), draft("b"))
    assert (moved.result, moved.sid) == ("updated", (4, 4, 0))
    assert heir.sid == (1, 2, 0)
    assert (await entries_of(log))[1].since == 2


async def test_an_item_of_the_checkpoint_keeps_its_sid_and_is_unchanged_by_its_own_text(log: ItemLog) -> None:
    def posted(content: str) -> ItemDraft:
        return replace(draft("a", base=BASE), content_hash=content)

    claims = await write(log, *map(posted, ("own", "other", "other", "own")))
    assert [claim.result for claim in claims] == ["unchanged", "updated", "unchanged", "updated"]
    assert {claim.sid for claim in claims} == {(9, 9, 9)}


async def test_a_deleted_item_frees_its_sid_and_gets_it_back_when_it_returns(log: ItemLog) -> None:
    claims = await write(log, draft("a"), Removal("a"), Removal("a"), draft("b"), draft("a"), Removal("nobody"))
    assert [claim.result for claim in claims] == ["created", "deleted", "absent", "created", "created", "absent"]
    assert [claim.sid for claim in claims[:5]] == [(1, 2, 0)] * 5, "the heir shares it with the one who returned"
    assert [entry.op for entry in await entries_of(log)] == ["put", "delete", "put", "put"]


async def test_an_item_of_the_checkpoint_can_go_and_come_back(log: ItemLog) -> None:
    own = replace(draft("a", base=BASE), content_hash="own")
    claims = await write(log, Removal("a", BASE), Removal("a", BASE), own)
    assert [(claim.result, claim.sid) for claim in claims] == [
        ("deleted", (9, 9, 9)),
        ("absent", (9, 9, 9)),
        ("created", (9, 9, 9)),
    ]


async def test_the_log_gives_back_what_was_posted_in_order_page_by_page(log: ItemLog) -> None:
    drafts = [draft(f"item-{n}") for n in range(3)]
    claims = await write(log, *drafts)
    first = await log.read_after(LOG_START, 2, 0)
    rest = await log.read_after(first.position, 2, 0)
    entries = first.entries + rest.entries
    assert [(entry.item, entry.vector) for entry in entries] == [(each.item, each.vector) for each in drafts]
    assert [(entry.sid, entry.version) for entry in entries] == [(claim.sid, claim.version) for claim in claims]
    assert [entry.previous for entry in entries] == [0, 1, 2]
    assert (await log.read_after(rest.position, 2, 0)).position == rest.position
    assert position_key(first.position) < position_key(rest.position)


async def test_a_waiting_reader_is_woken_by_an_append(log: ItemLog) -> None:
    reading = asyncio.create_task(log.read_after(LOG_START, 10, 5))
    await asyncio.sleep(0.05)
    await write(log, draft("a"))
    assert len((await asyncio.wait_for(reading, 0.5)).entries) == 1


async def test_200_concurrent_claims_of_one_id_make_one_item(log: ItemLog) -> None:
    claims = [claim for part in await asyncio.gather(*(write(log, draft("a")) for _ in range(200))) for claim in part]
    assert sorted(claim.result for claim in claims) == ["created"] + ["unchanged"] * 199
    assert len({claim.sid for claim in claims}) == 1 and len(await entries_of(log)) == 1


async def test_a_writer_that_follows_another_log_is_refused_and_writes_nothing(log: ItemLog) -> None:
    with pytest.raises(LogLostError):
        await log.append("another", [draft("a")])
    assert await entries_of(log) == []


async def test_a_floor_lifts_all_later_versions_above_it(log: ItemLog) -> None:
    await write(log, draft("a"))
    claim = (await write(log, draft("b"), floor=10))[0]
    low = (await write(log, draft("c"), floor=3))[0]
    assert (claim.version, low.version) == (12, 13)
    assert [(entry.version, entry.previous, entry.op) for entry in await entries_of(log)] == [
        (1, 0, "put"),
        (11, 1, "mark"),
        (12, 11, "put"),
        (13, 12, "put"),
    ]


async def test_a_restoration_brings_an_old_state_back_unless_something_newer_was_said(log: ItemLog) -> None:
    await write(log, draft("a"), draft("a", "second", UNDER_B))
    old = (await entries_of(log))[0]
    assert (await write(log, Restoration(old, 1)))[0].result == "conflict"
    claim = (await write(log, Restoration(old, 2)))[0]
    newest = (await entries_of(log))[-1]
    assert (claim.result, claim.version) == ("restored", 3)
    assert (newest.item, newest.sid, newest.since, newest.vector) == (old.item, old.sid, old.since, old.vector)
    assert (await write(log, draft("a")))[0].result == "unchanged"
    assert (await write(log, draft("b", where=UNDER_B)))[0].sid == (4, 4, 0), "its second SID is free again"


async def test_a_snapshot_gives_the_state_back_and_shortens_the_log(log: ItemLog) -> None:
    await write(log, draft("a"), draft("b"), Removal("b"), draft("c"), draft("a", "second"))
    entries = await entries_of(log)
    state, kept = await log.state(), list(latest(entries[:4]).values())
    assert state is not None
    assert await log.save(state, replace(HEADER, version=4, position=entries[3].position), kept, 1)
    state = await log.state()
    assert state is not None and [header.version for header in state.snapshots] == [4]
    assert await log.load(state.snapshots[0]) == kept
    assert [entry.version for entry in await entries_of(log)] == [5], "only what the snapshot does not hold"
    assert (await write(log, draft("c")))[0].result == "unchanged", "claims do not depend on the log's length"


async def test_the_log_is_cut_only_as_far_as_the_oldest_kept_snapshot_reaches(log: ItemLog) -> None:
    for version in range(1, 6):
        await write(log, draft(f"item-{version}"))
        entries, state = await entries_of(log), await log.state()
        assert state is not None
        header = replace(HEADER, version=version, position=entries[-1].position)
        assert await log.save(state, header, [], 2)
    state = await log.state()
    assert state is not None and [header.version for header in state.snapshots] == [5, 4]
    assert [entry.version for entry in await entries_of(log)] == [5]


async def test_of_two_snapshots_made_at_once_one_is_kept(log: ItemLog) -> None:
    await write(log, draft("a"))
    state = await log.state()
    assert state is not None
    header = replace(HEADER, version=1, position=(await entries_of(log))[-1].position)
    assert await log.save(state, header, [], 2) and not await log.save(state, header, [], 2)


async def test_a_flushed_log_is_republished_once_and_goes_on_where_it_was(redis_url: str) -> None:
    log = redis_log(redis_url)
    await log.begin()
    await write(log, draft("a"), draft("b"), Removal("b"))
    kept = list(latest(await entries_of(log)).values())
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    assert await log.state() is None
    header = replace(HEADER, version=3)
    assert sorted(await asyncio.gather(*(log.republish(header, kept) for _ in range(5)))) == [False] * 4 + [True]
    state = await log.state()
    assert state is not None and (state.version, state.base) == (3, 3)
    assert await log.load(state.snapshots[0]) == kept
    claims = await write(log, draft("a"), draft("c"), draft("b"))
    assert [claim.result for claim in claims] == ["unchanged", "created", "created"]
    assert [claim.sid for claim in claims] == [(1, 2, 0), (1, 2, 5), (1, 2, 5)]
    assert [entry.version for entry in await entries_of(log)] == [4, 5]
    await log.close()


async def test_a_damaged_snapshot_is_refused(redis_url: str) -> None:
    log = redis_log(redis_url)
    state = await log.begin()
    await log.append(state.generation, [draft("a")])
    await log.save(state, replace(HEADER, version=1, position="1-0"), await entries_of(log), 2)
    state = await log.begin()
    with redis.Redis.from_url(redis_url) as client:
        chunk = client.lindex(state.snapshots[0].key, 0)
        client.lset(state.snapshots[0].key, 0, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    with pytest.raises(LogLostError, match="sha256"):
        await log.load(state.snapshots[0])
    await log.close()


async def test_a_full_redis_says_storage_full_and_keeps_what_it_has(own_redis: RedisServer) -> None:
    log = redis_log(own_redis.url)
    await log.begin()
    await write(log, draft("a"))
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        with pytest.raises(StorageFullError):
            await write(log, draft("b"))
        client.config_set("maxmemory", "0")
    assert [entry.item_id for entry in await entries_of(log)] == ["a"]
    assert (await write(log, draft("b")))[0].version == 2
    await log.close()


async def test_entries_nobody_can_read_are_passed_over(redis_url: str) -> None:
    log = redis_log(redis_url)
    await log.begin()
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.xadd("groundrec:{abc}:items", {"entry": "{not json"})
        last = foreign.xadd("groundrec:{abc}:items", {"version": "x", "body": ""})
    page = await log.read_after(LOG_START, 10, 0)
    assert page.entries == () and page.position == last.decode()
    await write(log, draft("a"))
    assert len((await log.read_after(page.position, 10, 0)).entries) == 1
    await log.close()


async def test_another_codebook_has_another_log(redis_url: str) -> None:
    log, other = redis_log(redis_url), RedisItemLog(redis_url, fingerprint="def", shown_url=redis_url)
    await log.begin()
    await other.begin()
    await write(log, draft("a"))
    assert await entries_of(other) == []
    await log.close()
    await other.close()


@pytest.mark.parametrize("seed", range(8))
async def test_redis_and_memory_decide_alike_whatever_comes(redis_url: str, seed: int) -> None:
    """The law that makes the store in memory a twin: any sequence of changes has the same answers and entries."""
    chance, logs = random.Random(seed), (redis_log(redis_url), MemoryItemLog())
    for log in logs:
        await log.begin()
    for _ in range(30):
        changes = [any_change(chance, await entries_of(logs[1])) for _ in range(chance.randint(1, 6))]
        floor = chance.choice([0, 0, 0, chance.randint(1, 60)])
        answers = [await write(log, *changes, floor=floor) for log in logs]
        assert answers[0] == answers[1]
    found = [[replace(entry, position="") for entry in await entries_of(log)] for log in logs]
    assert found[0] == found[1] and len(found[0]) > 20
    await logs[0].close()


def any_change(chance: random.Random, entries: list[LogEntry]) -> Change:
    item_id = f"item-{chance.randint(0, 7)}"
    base = BaseClaim("own", (9, 9, int(item_id[-1]))) if item_id < "item-3" else None
    if chance.random() < 0.25:
        return Removal(item_id, base)
    old = [entry for entry in entries if entry.op != "mark"]
    if old and chance.random() < 0.2:
        entry = chance.choice(old)
        reset = replace(entry, op="reset", item=None, content_hash="", vector=b"")
        return Restoration(chance.choice([entry, reset]), chance.randint(0, 60))
    where = chance.choice([UNDER_A, UNDER_B])
    return draft(item_id, chance.choice(["one", "two", "three"]), where, chance.choice([(), (7,)]), base)
