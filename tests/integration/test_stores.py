"""The promises of the item log, kept alike by Redis and by the store in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid
from service.stores.base import LOG_START, ItemDraft, ItemLog, position_key
from service.stores.memory import MemoryItemLog
from service.stores.redis_items import RedisItemLog

UNDER_A: list[Sid] = [(1, 2, 0), (1, 2, 5), (1, 2, 3)]
UNDER_B: list[Sid] = [(4, 4, 0), (4, 4, 1)]


def redis_log(url: str) -> RedisItemLog:
    return RedisItemLog(url, fingerprint="abc", shown_url=url)


@pytest.fixture(params=["redis", "memory"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[ItemLog]:
    store: ItemLog = MemoryItemLog()
    if request.param == "redis":
        store = redis_log(request.getfixturevalue("redis_url"))
    yield store
    await store.close()


def draft(item_id: str, text: str = "text") -> ItemDraft:
    return ItemDraft(ItemRecord(item_id, text, "", {"year": 1999, "genres": ["Ä", '"']}), f"hash of {text}")


async def test_a_new_item_takes_the_nearest_candidate_that_no_posted_item_has(log: ItemLog) -> None:
    claims = [await log.claim_and_append(draft(f"item-{n}"), UNDER_A) for n in range(3)]
    assert [claim.sid for claim in claims] == UNDER_A
    assert {claim.result for claim in claims} == {"created"} and not any(claim.collides_with for claim in claims)


async def test_when_all_candidates_are_taken_the_first_is_shared_and_its_owner_named(log: ItemLog) -> None:
    for n in range(3):
        await log.claim_and_append(draft(f"item-{n}"), UNDER_A)
    claim = await log.claim_and_append(draft("item-3"), UNDER_A)
    assert (claim.result, claim.sid, claim.collides_with) == ("created", UNDER_A[0], "item-0")


async def test_the_same_content_is_unchanged_and_leaves_no_entry(log: ItemLog) -> None:
    first, second = [await log.claim_and_append(draft("a"), UNDER_A) for _ in range(2)]
    assert (second.result, second.sid, second.position) == ("unchanged", first.sid, None)
    assert len((await log.read_after(LOG_START, 10, 0)).entries) == 1


async def test_new_content_under_the_same_prefix_keeps_the_sid(log: ItemLog) -> None:
    first = await log.claim_and_append(draft("a"), UNDER_A)
    second = await log.claim_and_append(draft("a", "other"), UNDER_A[1:])
    assert (second.result, second.sid) == ("updated", first.sid)


async def test_new_content_under_another_prefix_moves_and_frees_the_old_sid(log: ItemLog) -> None:
    await log.claim_and_append(draft("a"), UNDER_A)
    moved = await log.claim_and_append(draft("a", "other"), UNDER_B)
    heir = await log.claim_and_append(draft("b"), UNDER_A)
    assert (moved.result, moved.sid) == ("updated", UNDER_B[0])
    assert heir.sid == UNDER_A[0] and heir.collides_with is None


async def test_an_item_of_the_checkpoint_keeps_its_sid_and_is_unchanged_by_its_own_text(log: ItemLog) -> None:
    def base(text: str) -> ItemDraft:
        return ItemDraft(draft("a").item, text, base_hash="own", base_sid=(9, 9, 9))

    results = [await log.claim_and_append(base(text), UNDER_A) for text in ("own", "other", "other", "own")]
    assert [claim.result for claim in results] == ["unchanged", "updated", "unchanged", "updated"]
    assert {claim.sid for claim in results} == {(9, 9, 9)}


async def test_the_log_gives_back_what_was_posted_in_order_page_by_page(log: ItemLog) -> None:
    drafts = [draft(f"item-{n}") for n in range(3)]
    claims = [await log.claim_and_append(each, UNDER_A) for each in drafts]
    first = await log.read_after(LOG_START, 2, 0)
    rest = await log.read_after(first.position, 2, 0)
    entries = first.entries + rest.entries
    assert [entry.item for entry in entries] == [each.item for each in drafts]
    assert [(entry.sid, entry.position) for entry in entries] == [(claim.sid, claim.position) for claim in claims]
    assert (await log.read_after(rest.position, 2, 0)).position == rest.position
    assert position_key(first.position) < position_key(rest.position)


async def test_a_waiting_reader_is_woken_by_an_append(log: ItemLog) -> None:
    reading = asyncio.create_task(log.read_after(LOG_START, 10, 5))
    await asyncio.sleep(0.05)
    await log.claim_and_append(draft("a"), UNDER_A)
    assert len((await asyncio.wait_for(reading, 0.5)).entries) == 1


async def test_concurrent_claims_of_one_sid_have_one_winner(log: ItemLog) -> None:
    claims = await asyncio.gather(*(log.claim_and_append(draft(f"item-{n}"), UNDER_A[:1]) for n in range(20)))
    assert sum(claim.collides_with is None for claim in claims) == 1


async def test_entries_nobody_can_read_are_passed_over(redis_url: str) -> None:
    log = redis_log(redis_url)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.xadd("groundrec:{abc}:items", {"entry": "{not json"})
        last = foreign.xadd("groundrec:{abc}:items", {"other": "field"})
    page = await log.read_after(LOG_START, 10, 0)
    assert page.entries == () and page.position == last.decode()
    await log.claim_and_append(draft("a"), UNDER_A)
    assert len((await log.read_after(page.position, 10, 0)).entries) == 1
    await log.close()


async def test_another_codebook_has_another_log(redis_url: str) -> None:
    log, other = redis_log(redis_url), RedisItemLog(redis_url, fingerprint="def", shown_url=redis_url)
    await log.claim_and_append(draft("a"), UNDER_A)
    assert (await other.read_after(LOG_START, 10, 0)).entries == ()
    await log.close()
    await other.close()
