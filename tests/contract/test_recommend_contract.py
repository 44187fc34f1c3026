"""What POST /recommend promises (service/README.md), with public failures of other systems named in the tests."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from service.app import Parts
from service.errors import EngineError, OverloadedError, StorageError
from service.model.checkpoint import CatalogTensors, Checkpoint
from service.model.semantic_ids import Sid
from service.stores.base import HistoryEvent
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import Running, exact_checkpoint, ids, running, write_items
from tests.tiny_checkpoint import Shape

HISTORY = ["item-3", "item-4", "item-5"]
EVERYTHING = [f"item-{n}" for n in range(60)]


async def test_an_answer_has_existing_distinct_items_with_titles_ranks_and_falling_scores(service: Running) -> None:
    answer = await service.recommend(history=HISTORY, num_results=20)
    items = answer["items"]
    assert len(items) == 20 == len(set(ids(answer)))
    assert set(ids(answer)) <= set(EVERYTHING)
    assert [item["rank"] for item in items] == list(range(1, 21))
    scores = [item["score"] for item in items]
    assert scores == sorted(scores, reverse=True)
    assert all(item["source"] == "model" and len(item["semantic_id"]) == 3 for item in items)
    assert all(item["title"] == item["item_id"].replace("item-", "Title ") for item in items)
    assert answer["degraded"] is False and answer["degraded_reasons"] == []


async def test_the_answer_names_model_catalogue_and_itself(service: Running, checkpoint: Checkpoint) -> None:
    first, second = [await service.recommend(history=HISTORY) for _ in range(2)]
    assert first["model_version"] == checkpoint.manifest.model_version
    assert first["catalog_version"] == 0
    assert first["took_ms"] >= 0
    assert first["recommendation_id"] != second["recommendation_id"]


async def test_the_same_request_on_the_same_versions_gives_the_same_answer_on_both_paths(service: Running) -> None:
    body = {"history": HISTORY, "num_results": 30}
    first, second = [await service.post(path, body) for path in ("/recommend", "/v1/recommend")]
    assert first["items"] == second["items"]


async def test_a_context_is_logged_with_the_recommendations_id(service: Running) -> None:
    with capture_logs() as lines:
        answer = await service.recommend(user_id="private", context={"page": "home"})
    recorded = [line for line in lines if line["event"] == "recommendation"]
    assert [(line["recommendation_id"], line["context"]) for line in recorded] == [
        (answer["recommendation_id"], {"page": "home"})
    ]
    assert "private" not in repr(lines)


async def test_the_history_reaches_the_engine_as_the_prompt_of_its_sids(
    service: Running, checkpoint: Checkpoint
) -> None:
    await service.recommend(history=["item-9", {"item_id": "item-2", "timestamp": 5, "event": "view"}])
    codes = checkpoint.catalog_tensors().codes_NL.tolist()
    assert service.engine.requests[-1].prompt_ids == checkpoint.prompt.build([tuple(codes[9]), tuple(codes[2])])


async def test_seen_items_are_left_out_by_default_and_come_back_when_asked(service: Running) -> None:
    assert not set(ids(await service.recommend(history=HISTORY, num_results=60))) & set(HISTORY)
    assert set(ids(await service.recommend(history=HISTORY, num_results=60, exclude_seen=False))) >= set(HISTORY)


async def test_exclude_list_is_supported_gorse_1216(service: Running) -> None:
    excluded = ids(await service.recommend(history=HISTORY))
    answer = await service.recommend(history=HISTORY, exclude_item_ids=excluded)
    assert not set(ids(answer)) & set(excluded)
    assert len(answer["items"]) == 10


async def test_page_two_does_not_repeat_page_one_gorse_802(service: Running) -> None:
    whole = ids(await service.recommend(history=HISTORY, num_results=20))
    page_one = ids(await service.recommend(history=HISTORY))
    page_two = ids(await service.recommend(history=HISTORY, exclude_item_ids=page_one))
    assert page_one + page_two == whole


async def test_fewer_legal_items_than_asked_make_a_shorter_list_static(service: Running) -> None:
    answer = await service.recommend(history=HISTORY, num_results=100, exclude_item_ids=EVERYTHING[8:])
    assert sorted(ids(answer)) == ["item-0", "item-1", "item-2", "item-6", "item-7"]
    assert answer["degraded"] is False


async def test_nothing_legal_is_an_empty_list_not_a_lifted_constraint_minionerec_50(service: Running) -> None:
    answer = await service.recommend(history=HISTORY, exclude_item_ids=EVERYTHING)
    assert answer["items"] == [] and answer["degraded"] is False


async def test_a_cold_user_gets_popular_items_and_is_not_degraded(service: Running) -> None:
    bodies: list[dict[str, Any]] = [{}, {"user_id": "nobody"}, {"history": []}]
    for body in bodies:
        answer = await service.recommend(**body)
        assert ids(answer) == EVERYTHING[:10], "the tiny catalogue is in order of popularity"
        assert {item["source"] for item in answer["items"]} == {"fallback"}
        assert answer["degraded"] is False
        scores = [item["score"] for item in answer["items"]]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0


async def test_unknown_items_of_a_history_are_skipped(service: Running) -> None:
    known = await service.recommend(history=HISTORY)
    mixed = await service.recommend(history=["gone-1", *HISTORY, "gone-2"])
    assert mixed["items"] == known["items"] and mixed["degraded"] is False


async def test_a_history_of_unknown_items_only_is_answered_with_popular_items_and_says_so(service: Running) -> None:
    answer = await service.recommend(history=["gone-1", "gone-2"])
    assert ids(answer) == EVERYTHING[:10]
    assert answer["degraded"] is True and answer["degraded_reasons"] == ["unknown_history_items"]


async def test_a_dead_engine_is_answered_with_unseen_popular_items_and_says_so(service: Running) -> None:
    service.engine.failure = EngineError("dead")
    answer = await service.recommend(history=["item-0"], exclude_item_ids=["item-1"])
    assert ids(answer) == EVERYTHING[2:12]
    assert answer["degraded"] is True and answer["degraded_reasons"] == ["engine_unavailable"]


async def test_a_hung_engine_is_given_up_at_the_clients_own_deadline(service: Running) -> None:
    service.engine.hangs = True
    answer = await service.recommend(history=HISTORY, timeout_ms=60)
    assert answer["degraded_reasons"] == ["deadline_exceeded"] and len(answer["items"]) == 10
    assert 55 <= answer["took_ms"] < 1000
    assert service.engine.cancelled == 1


async def test_a_client_cannot_raise_the_deadline(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, request_timeout_ms=60) as service:
        service.engine.hangs = True
        assert (await service.recommend(history=HISTORY, timeout_ms=60_000))["took_ms"] < 1000


async def test_a_version_the_engine_forgot_is_asked_for_again_under_the_newest(service: Running) -> None:
    await service.item(item_id="new-1", title="like Title 3")
    held, service.engine.versions = service.engine.versions, ForgetsOnce(service.engine.versions)
    answer = await service.recommend(history=HISTORY)
    assert answer["degraded"] is False and answer["catalog_version"] == 1
    assert len(service.engine.requests) == 2
    service.engine.versions = {0: held[0]}
    answer = await service.recommend(history=HISTORY)
    assert answer["degraded_reasons"] == ["engine_unavailable"] and len(answer["items"]) == 10


class ForgetsOnce(dict[int, frozenset[Sid]]):
    """Versions that are not there at the first look."""

    looked = False

    def __contains__(self, version: object) -> bool:
        looked, self.looked = self.looked, True
        return looked and super().__contains__(version)


async def test_a_stored_history_is_used_and_an_inline_one_wins(checkpoint: Checkpoint) -> None:
    histories = MemoryHistory()
    await histories.append([("42", HistoryEvent(item_id, time)) for time, item_id in enumerate(HISTORY)])
    async with running(
        checkpoint, Parts(item_log=MemoryItemLog(), histories=histories), allow_volatile=True
    ) as service:
        stored = await service.recommend(user_id="42")
        assert stored["items"] == (await service.recommend(history=HISTORY))["items"]
        inline = await service.recommend(user_id="42", history=["item-50"])
        assert inline["items"] == (await service.recommend(history=["item-50"]))["items"] != stored["items"]


class BrokenHistory(MemoryHistory):
    """Fails or hangs on demand."""

    trouble: str | None = None

    async def recent(self, user_ids: Sequence[str], limit: int) -> list[list[str]]:
        if self.trouble == "error":
            raise StorageError("down")
        if self.trouble == "hang":
            await asyncio.Event().wait()
        return await super().recent(user_ids, limit)


@pytest.mark.parametrize("trouble", ["error", "hang"])
async def test_without_redis_the_last_known_history_is_used_and_the_answer_says_so(
    checkpoint: Checkpoint, trouble: str
) -> None:
    histories = BrokenHistory()
    await histories.append([("42", HistoryEvent("item-7", 1.0))])
    async with running(
        checkpoint, Parts(item_log=MemoryItemLog(), histories=histories), allow_volatile=True
    ) as service:
        before = await service.recommend(user_id="42")
        histories.trouble = trouble
        known, unknown = [await service.recommend(user_id=user) for user in ("42", "43")]
        assert known["items"] == before["items"]
        assert ids(unknown) == EVERYTHING[:10]
        for answer in (known, unknown):
            assert answer["degraded"] is True and answer["degraded_reasons"] == ["history_unavailable"]
            assert answer["took_ms"] < 1000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Every SID is shared by several items: 4 SIDs, 24 items."""
    folder = Path(tmp_path_factory.mktemp("crowded")) / "tiny"
    made = exact_checkpoint(folder, Shape(levels=2, codes=2, items=4, memory=False))
    tensors, rows = made.catalog_tensors(), np.arange(24) % 4
    items = [replace(made.items()[0], item_id=f"item-{n}", title=f"Title {n}") for n in range(24)]
    popularity = np.arange(24, dtype=np.int64) // 2
    return write_items(made, items, CatalogTensors(tensors.codes_NL[rows], tensors.embedding_NE[rows], popularity))


async def test_items_that_share_a_sid_are_all_recommended_most_popular_first(crowded: Checkpoint) -> None:
    async with running(crowded) as service:
        answer = await service.recommend(history=["item-0"], num_results=100)
        assert sorted(ids(answer)) == sorted(f"item-{n}" for n in range(1, 24))
        scores = [item["score"] for item in answer["items"]]
        assert scores == sorted(scores, reverse=True)
        first_bucket = [item for item in answer["items"] if item["score"] == scores[0]]
        order = [int(item["item_id"].removeprefix("item-")) for item in first_bucket]
        assert order == sorted(order, key=lambda number: -(number // 2))


async def test_excluding_one_item_of_a_shared_sid_keeps_the_others(crowded: Checkpoint) -> None:
    async with running(crowded) as service:
        excluded = [f"item-{n}" for n in range(20)]
        answer = await service.recommend(history=["item-0"], exclude_item_ids=excluded, num_results=10)
        assert sorted(ids(answer)) == ["item-20", "item-21", "item-22", "item-23"]


async def test_a_full_engine_queue_is_said_and_not_papered_over(service: Running) -> None:
    service.engine.failure = OverloadedError("too many beams wait")
    answer = await service.client.post("/v1/recommend", json={"history": ["item-1"]})
    assert answer.status_code == 503 and answer.json()["type"].endswith(":overloaded")
    assert answer.headers["retry-after"] == "1"
