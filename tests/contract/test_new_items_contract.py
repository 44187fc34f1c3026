"""What a checkpoint with a dial promises for items newer than it: found by text, capped, and under every rule."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.app import Parts
from service.model.checkpoint import Checkpoint, change_manifest, open_checkpoint
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import Running, ids, running

HISTORY = ["item-3", "item-4", "item-5"]
DIAL = {"bias": 3.0, "text": 1.0, "model": 0.2, "temperature": 0.1, "decay": 0.5, "history": 10}


def with_dial(checkpoint: Checkpoint, folder: Path, **changes: Any) -> Checkpoint:
    """A copy of the checkpoint that scores new items beside the beam; this one is sure of itself."""
    copied = Path(shutil.copytree(checkpoint.folder, folder))
    part = {**DIAL, "max_share": 0.3, "fitted_on": "a test", **changes}
    smoothing = checkpoint.manifest.smoothing.model_dump() | {"boost": 1e-4, "new_items": part}
    change_manifest(copied, {"smoothing": smoothing})
    return open_checkpoint(copied)


@pytest.fixture
async def service(checkpoint: Checkpoint, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(with_dial(checkpoint, tmp_path / "dialled")) as started:
        yield started


async def post(service: Running, *titles: str, **attributes: Any) -> list[str]:
    """Post items named by their order."""
    names = [f"new-{number}" for number in range(len(titles))]
    items = [
        {"item_id": name, "title": title, "attributes": attributes} for name, title in zip(names, titles, strict=True)
    ]
    results = (await service.post("/items", items))["items"]
    assert [result["result"] for result in results] == ["created"] * len(titles)
    return names


def new(answer: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in answer["items"] if item["source"] == "new_item"]


async def test_a_posted_item_is_recommended_to_who_likes_its_like(service: Running) -> None:
    await post(service, "like Title 5", "like Title 50")
    answer = await service.recommend(history=HISTORY)
    assert new(answer)[0] == "new-0"
    assert ids(await service.recommend(history=["item-49", "item-50"])).index("new-1") < 3


async def test_the_list_stays_in_order_distinct_and_of_its_length(service: Running) -> None:
    await post(service, *(f"like Title {number}" for number in range(10)))
    answer = await service.recommend(history=HISTORY, num_results=20)
    scores = [item["score"] for item in answer["items"]]
    assert scores == sorted(scores, reverse=True) and max(scores) <= 0
    assert len(ids(answer)) == len(set(ids(answer))) == 20
    assert [item["rank"] for item in answer["items"]] == list(range(1, 21))


@pytest.mark.parametrize(("share", "most"), [(None, 3), (0.1, 1), (0.5, 5), (0.0, 0)])
async def test_rule_10_new_items_take_no_more_than_their_share(
    checkpoint: Checkpoint, tmp_path: Path, share: float | None, most: int
) -> None:
    async with running(with_dial(checkpoint, tmp_path / "dialled"), new_item_share=share) as service:
        await post(service, *["like Title 5"] * 8)
        assert len(new(await service.recommend(history=HISTORY, num_results=10))) == most
        told = (await service.client.get("/model")).json()
        assert told["new_item_share"] == (0.3 if share is None else share)


async def test_where_the_model_has_nothing_left_new_items_fill_the_list(service: Running) -> None:
    names = await post(service, *["like Title 5"] * 6)
    everything = [f"item-{number}" for number in range(60)]
    answer = await service.recommend(history=HISTORY, exclude_item_ids=everything, num_results=10)
    assert set(ids(answer)) == set(names)


async def test_excluded_and_seen_new_items_do_not_come(service: Running) -> None:
    await post(service, "like Title 5", "like Title 5")
    answer = await service.recommend(history=[*HISTORY, "new-0"], exclude_item_ids=["new-1"])
    assert new(answer) == []
    assert "new-0" in new(await service.recommend(history=[*HISTORY, "new-0"], exclude_seen=False))


async def test_a_filter_holds_for_new_items_too(service: Running) -> None:
    await post(service, "like Title 5", "like Title 4", year=2030)
    for rule, wanted in (({"min": {"year": 2030}}, {"new-0", "new-1"}), ({"max": {"year": 2029}}, set[str]())):
        answer = await service.recommend(history=HISTORY, filter=rule)
        assert set(new(answer)) == wanted
        assert ids(answer)


async def test_a_deleted_item_is_gone_and_comes_back_when_posted_again(service: Running) -> None:
    await post(service, "like Title 5")
    assert new(await service.recommend(history=HISTORY)) == ["new-0"]
    assert (await service.client.delete("/items/new-0")).status_code == 200
    assert new(await service.recommend(history=HISTORY)) == []
    await post(service, "like Title 5")
    assert new(await service.recommend(history=HISTORY)) == ["new-0"]


async def test_an_item_of_another_text_goes_to_other_users(service: Running) -> None:
    await post(service, "like Title 5")
    before = (await service.recommend(history=HISTORY))["items"]
    await service.item(item_id="new-0", title="like Title 50")
    after = (await service.recommend(history=HISTORY, num_results=60))["items"]
    scores = [next((item["score"] for item in items if item["item_id"] == "new-0"), -99) for items in (before, after)]
    assert scores[0] > scores[1]
    assert "new-0" in new(await service.recommend(history=["item-50"]))


async def test_an_explained_new_item_has_no_level_scores_but_relatives(service: Running) -> None:
    await post(service, "like Title 5")
    answer = await service.recommend(history=HISTORY, explain=True)
    place = next(item for item in answer["items"] if item["item_id"] == "new-0")
    assert place["explanation"]["level_scores"] == []


async def test_the_model_report_shows_the_dial(service: Running) -> None:
    told = (await service.client.get("/model")).json()
    assert told["new_item_dial"] == {**DIAL, "fitted_on": "a test"}


async def test_without_a_dial_the_report_says_so(checkpoint: Checkpoint) -> None:
    async with running(checkpoint) as service:
        told = (await service.client.get("/model")).json()
        assert told["new_item_dial"] is None and told["new_item_share"] == 1.0


async def test_a_restart_scores_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    dialled, log = with_dial(checkpoint, tmp_path / "dialled"), MemoryItemLog()
    answers = []
    for attempt in range(2):
        parts = Parts(item_log=log, histories=MemoryHistory())
        async with running(dialled, parts, allow_volatile=True) as service:
            if not attempt:
                await post(service, "like Title 5", "like Title 4", "something else")
            answers.append((await service.recommend(history=HISTORY, num_results=20))["items"])
    assert answers[0] == answers[1]
