"""What POST /items promises: a SID from the text, idempotence, and the item in the next recommendation."""

from typing import Any

import pytest

from service.app import Parts
from service.errors import EngineError
from service.model.checkpoint import Checkpoint
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import Running, ids, running

NEW = {"item_id": "new-1", "title": "A film like Title 7", "attributes": {"year": 1999, "genres": ["Drama"]}}


async def everything(service: Running) -> dict[str, Any]:
    return await service.recommend(history=["item-1"], num_results=100)


async def test_new_items_are_recommended_by_the_next_request_without_reload_gorse_613(service: Running) -> None:
    before = await everything(service)
    result = await service.item(**NEW)
    after = await everything(service)
    assert result["result"] == "created"
    assert set(ids(after)) - set(ids(before)) == {"new-1"}
    shown = next(item for item in after["items"] if item["item_id"] == "new-1")
    assert shown["source"] == "new_item" and shown["title"] == NEW["title"]
    assert shown["semantic_id"] == result["semantic_id"]
    assert after["catalog_version"] == before["catalog_version"] + 1


async def test_a_new_item_gets_a_free_sid_under_its_texts_prefix_and_names_its_neighbours(
    service: Running, checkpoint: Checkpoint
) -> None:
    result = await service.item(**NEW)
    codes = checkpoint.catalog_tensors().codes_NL.tolist()
    assert result["semantic_id"] not in codes
    assert "collides_with" not in result
    neighbours = result["grounding"]["neighbours"]
    assert neighbours[0]["item_id"] == "item-7" and neighbours[0]["title"] == "Title 7"
    assert len(neighbours) == 3
    similarities = [neighbour["similarity"] for neighbour in neighbours]
    assert similarities == sorted(similarities, reverse=True)
    assert result["grounding"]["confidence"] == similarities[0] == pytest.approx(1.0, abs=1e-3)


async def test_a_new_leaf_borrows_probability_from_its_trained_siblings(
    service: Running, checkpoint: Checkpoint
) -> None:
    sid = tuple((await service.item(**NEW))["semantic_id"])
    mix = service.engine.deltas[-1].smoothing
    siblings = {codes[-1] for codes in checkpoint.catalog_tensors().codes_NL.tolist() if tuple(codes[:-1]) == sid[:-1]}
    assert service.engine.deltas[-1].added == (sid,)
    assert siblings and set(mix[sid].codes) == siblings


async def test_posting_again_changes_nothing(service: Running) -> None:
    first, second = [await service.item(**NEW) for _ in range(2)]
    assert (first["result"], second["result"]) == ("created", "unchanged")
    assert second["semantic_id"] == first["semantic_id"]
    assert (await everything(service))["catalog_version"] == 1


async def test_attribute_order_and_invisible_characters_are_no_change(service: Running) -> None:
    await service.item(**NEW)
    again = {**NEW, "title": "A  film\u200b like Title 7 ", "attributes": {"genres": ["Drama"], "year": 1999}}
    assert (await service.item(**again))["result"] == "unchanged"


async def test_a_corrected_text_under_the_same_prefix_keeps_the_sid(service: Running) -> None:
    first = await service.item(**NEW)
    second = await service.item(**{**NEW, "title": "Again a film like Title 7"})
    assert second["result"] == "updated" and second["semantic_id"] == first["semantic_id"]
    shown = {item["item_id"]: item["title"] for item in (await everything(service))["items"]}
    assert shown["new-1"] == "Again a film like Title 7"


async def test_a_text_that_moves_to_another_prefix_moves_the_item_and_frees_its_sid(
    service: Running, checkpoint: Checkpoint
) -> None:
    codes = checkpoint.catalog_tensors().codes_NL.tolist()
    other = next(n for n in range(60) if codes[n][:-1] != codes[7][:-1])
    first = await service.item(**NEW)
    second = await service.item(**{**NEW, "title": f"like Title {other}"})
    assert second["result"] == "updated" and second["semantic_id"][:-1] != first["semantic_id"][:-1]
    assert service.engine.deltas[-1].removed == (tuple(first["semantic_id"]),)
    assert ids(await everything(service)).count("new-1") == 1
    heir = await service.item(item_id="new-2", title="like Title 7")
    assert heir["semantic_id"] == first["semantic_id"] and "collides_with" not in heir


async def test_an_item_the_model_was_trained_with_keeps_its_sid_whatever_its_text(
    service: Running, checkpoint: Checkpoint
) -> None:
    sid = checkpoint.catalog_tensors().codes_NL.tolist()[3]
    same = await service.item(item_id="item-3", title="Title 3", attributes={"year": 1993})
    other = await service.item(item_id="item-3", title="A new name like Title 40")
    back = await service.item(item_id="item-3", title="Title 3", attributes={"year": 1993})
    assert [same["result"], other["result"], back["result"]] == ["unchanged", "updated", "updated"]
    assert same["semantic_id"] == other["semantic_id"] == back["semantic_id"] == sid
    shown = {item["item_id"]: item for item in (await everything(service))["items"]}
    assert shown["item-3"]["source"] == "model" and len(shown) == 59


async def test_when_a_prefix_is_full_items_share_a_sid_and_all_are_recommended(service: Running) -> None:
    posted = [{"item_id": f"same-{n}", "title": "like Title 7"} for n in range(20)]
    results = (await service.post("/items", posted))["items"]
    assert {result["result"] for result in results} == {"created"}
    assert any("collides_with" in result for result in results), "16 codes cannot hold 20 items"
    assert {f"same-{n}" for n in range(20)} <= set(ids(await everything(service)))


async def test_a_rejected_item_does_not_stop_the_others(service: Running) -> None:
    bodies = [
        {"item_id": "a", "title": "one"},
        {"item_id": "b", "title": " \u200b\u202e "},
        {"item_id": "c", "title": "x"},
    ]
    results = (await service.post("/v1/items", bodies))["items"]
    assert [result["item_id"] for result in results] == ["a", "b", "c"]
    assert [result["result"] for result in results] == ["created", "rejected", "created"]
    assert "title" in results[1]["reason"] and results[1]["semantic_id"] is None


async def test_the_same_id_twice_in_one_call_is_taken_in_order(service: Running) -> None:
    results = (await service.post("/items", [NEW, NEW, {**NEW, "title": "B like Title 7"}]))["items"]
    assert [result["result"] for result in results] == ["created", "unchanged", "updated"]


async def test_a_dry_run_foresees_the_answer_and_writes_nothing(service: Running) -> None:
    foreseen = (await service.post("/items?dry_run=true", NEW))["items"][0]
    assert (await everything(service))["catalog_version"] == 0
    assert await service.item(**NEW) == foreseen
    again = (await service.post("/items?dry_run=true", NEW))["items"][0]
    assert again["result"] == "unchanged" and again["semantic_id"] == foreseen["semantic_id"]


async def test_hostile_text_is_embedded_clean(service: Running) -> None:
    await service.item(item_id="evil", title="Buy\u202e \x07me\u200b<a_1>", description="ignore\x00 all")
    text = service.encoder.texts[-1]
    assert text.isprintable() and "\u202e" not in text and "\u200b" not in text


async def test_a_version_whose_acknowledgement_was_lost_is_tried_again_with_the_same_entries(
    checkpoint: Checkpoint,
) -> None:
    parts = Parts(item_log=MemoryItemLog(), histories=MemoryHistory())
    async with running(checkpoint, parts, allow_volatile=True) as service:
        service.engine.failure, service.engine.failing_updates = EngineError("answer lost"), 1
        await service.item(**NEW)
        await service.item(item_id="new-2", title="another like Title 9")
        service.engine.failure = None
        assert {"new-1", "new-2"} <= set(ids(await everything(service)))


async def test_a_write_that_shows_late_is_still_a_success(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, items_timeout_ms=200) as service:
        service.engine.failure, service.engine.failing_updates = EngineError("busy"), 10
        assert (await service.item(**NEW))["result"] == "created"
