"""What GET and DELETE /items promise, and what a dry run and odd items are told."""

from typing import Any

import pytest

from service.model.checkpoint import Checkpoint
from tests.service_doubles import Running, ids

NEW = {"item_id": "new/1", "title": "A film like Title 7", "attributes": {"year": 1999, "genres": ["Drama"]}}


async def everything(service: Running) -> list[str]:
    return ids(await service.recommend(history=["item-1"], num_results=100, exclude_seen=False))


async def get(service: Running, path: str, status: int = 200) -> dict[str, Any]:
    answer = await service.client.get(path)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def delete(service: Running, path: str, status: int = 200) -> dict[str, Any]:
    answer = await service.client.delete(path)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_an_item_can_be_looked_up_by_any_id_it_may_have(service: Running) -> None:
    posted = await service.item(**NEW)
    shown = await get(service, "/v1/items/new%2F1")
    assert {name: shown[name] for name in NEW} == NEW
    assert (shown["semantic_id"], shown["is_new"], shown["version"]) == (posted["semantic_id"], True, 1)
    trained = await get(service, "/items/item-3")
    assert (trained["is_new"], trained["version"], trained["popularity"]) == (False, 0, 57)


async def test_an_unknown_item_is_a_404_that_says_so(service: Running) -> None:
    for problem in (await get(service, "/items/nobody", 404), await delete(service, "/items/nobody", 404)):
        assert problem["type"].endswith(":unknown-item") and "id" in problem["detail"]


async def test_a_deleted_item_is_in_no_later_answer_and_a_second_delete_is_a_404(service: Running) -> None:
    await service.item(**NEW)
    for item_id in ("new/1", "item-3"):
        assert item_id in await everything(service)
        assert await delete(service, f"/items/{item_id}") == {"item_id": item_id, "result": "deleted"}
        assert item_id not in await everything(service)
        await get(service, f"/items/{item_id}", 404)
        await delete(service, f"/items/{item_id}", 404)
        popular = await service.recommend(num_results=100)
        assert item_id not in ids(popular), "nor among the popular ones"


async def test_a_deleted_item_that_is_posted_again_gets_its_old_sid(service: Running, checkpoint: Checkpoint) -> None:
    first = await service.item(**NEW)
    await delete(service, "/items/new/1")
    await delete(service, "/items/item-3")
    again = await service.item(**NEW)
    trained = await service.item(item_id="item-3", title="Title 3", attributes={"year": 1993})
    assert (again["result"], trained["result"]) == ("created", "created")
    assert again["semantic_id"] == first["semantic_id"]
    assert trained["semantic_id"] == checkpoint.catalog_tensors().codes_NL.tolist()[3]
    assert {"new/1", "item-3"} <= set(await everything(service))


async def test_pages_give_every_item_once_whatever_is_posted_meanwhile(service: Running) -> None:
    await service.post("/items", [{"item_id": f"early-{n}", "title": f"Film {n}"} for n in range(5)])
    seen: list[str] = []
    cursor: str | None = None
    for page in range(20):
        place = f"&cursor={cursor}" if cursor else ""
        answer = await get(service, f"/items?limit=7{place}")
        seen += [item["item_id"] for item in answer["items"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
        await service.item(item_id=f"late-{page}", title=f"Late {page}")
    assert cursor is None and len(seen) == len(set(seen))
    assert {f"item-{n}" for n in range(60)} | {f"early-{n}" for n in range(5)} <= set(seen)


async def test_items_are_found_by_a_part_of_their_title(service: Running) -> None:
    await service.item(**NEW)
    found = await get(service, "/items?q=TITLE%207&limit=5")
    assert [item["item_id"] for item in found["items"]] == ["item-7", "new/1"]
    assert found["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("cursor=%21%21", "?cursor"),
        ("cursor=eA", "?cursor"),
        ("limit=0", "?limit"),
        ("limit=1001", "?limit"),
        ("q=" + "x" * 201, "?q"),
        ("offset=5", "?offset"),
    ],
)
async def test_a_query_that_cannot_be_served_is_a_422_that_names_the_parameter(
    service: Running, query: str, pointer: str
) -> None:
    problem = await get(service, f"/items?{query}", 422)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"title": " \u200b "}, "title"),
        ({"item_id": "a\u202eb"}, "item_id"),
        ({"attributes": {"\u200b": 1}}, "attributes"),
        ({"attributes": {"year": 1, "year\u200b": 2}}, "attributes"),
    ],
)
async def test_an_item_that_cannot_be_taken_is_rejected_by_the_name_of_its_field(
    service: Running, change: dict[str, Any], field: str
) -> None:
    result = await service.item(**{**NEW, **change})
    assert result["result"] == "rejected" and result["reason"].startswith(f"{field}: ")
    assert (await get(service, "/items?q=like"))["items"] == []


async def test_grounding_tells_what_each_level_leaves_unexplained_and_warns_of_the_unknown(service: Running) -> None:
    known = (await service.item(**NEW))["grounding"]
    assert len(known["distances"]) == 3 and known["distances"] == sorted(known["distances"], reverse=True)
    assert known["distances"][-1] < 0.01 and "warning" not in known
    strange = [(await service.item(item_id=f"s-{n}", title=f"strange {n}"))["grounding"] for n in range(5)]
    assert any("unlike anything" in grounding.get("warning", "") for grounding in strange)
    assert all(grounding["distances"][-1] > 0.05 for grounding in strange)


async def test_filters_reach_attributes_of_posted_items_at_once(service: Running) -> None:
    async def filtered(**rule: Any) -> list[str]:
        return ids(await service.recommend(history=["item-1"], num_results=100, filter=rule))

    await service.item(**NEW)
    await service.item(item_id="new-2", title="Another like Title 7", attributes={"genres": ["Comedy"]})
    assert await filtered(include={"genres": ["Drama"]}) == ["new/1"]
    assert sorted(await filtered(include={"genres": ["Drama", "Comedy"]})) == ["new-2", "new/1"]
    assert await filtered(min={"year": 1999}, max={"year": 1999}, include={"genres": ["Drama"]}) == ["new/1"]
    assert "new/1" not in await filtered(exclude={"genres": ["Drama"]})
    await service.item(**{**NEW, "attributes": {"genres": ["Horror"]}})
    assert await filtered(include={"genres": ["Drama"]}) == []


async def test_an_unknown_field_of_a_filter_is_a_422_that_names_the_nearest(service: Running) -> None:
    await service.item(**NEW)
    body = {"history": ["item-1"], "filter": {"include": {"genre": ["Drama"]}}}
    answer = await service.client.post("/recommend", json=body)
    problem = answer.json()
    assert answer.status_code == 422 and problem["errors"][0]["pointer"] == "/filter/include/genre"
    assert "'genres'" in problem["errors"][0]["detail"]
    bounds = await service.client.post("/recommend", json={"history": ["item-1"], "filter": {"min": {"genres": 1}}})
    assert bounds.status_code == 422 and "no numbers" in bounds.json()["detail"]


async def test_a_shared_sid_gives_only_its_items_that_the_filter_allows(service: Running) -> None:
    posted = [{"item_id": f"same-{n}", "title": "like Title 7", "attributes": {"part": n % 2}} for n in range(40)]
    results = (await service.post("/items", posted))["items"]
    assert any("collides_with" in result for result in results)
    answer = await service.recommend(history=["item-1"], num_results=100, filter={"include": {"part": [1]}})
    assert sorted(ids(answer)) == sorted(f"same-{n}" for n in range(40) if n % 2)
