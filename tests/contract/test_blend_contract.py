"""What POST /recommend promises when the checkpoint has weights for company and texts."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from service.errors import CheckpointError
from service.model.blend import NONE, BlendWeights, Neighbours, log_densities
from service.model.checkpoint import NEIGHBOURS, Checkpoint
from service.model.checkpoint_files import MANIFEST
from tests.blended_checkpoint import blended_with
from tests.service_doubles import ids, running
from tests.tiny_checkpoint import build

FRIENDS = {3: 40, 4: 41, 5: 42}
WEIGHTS = BlendWeights(0.1, 0.5, 0.1, reach=0.9)


@pytest.fixture
def blended(tmp_path: Path) -> Checkpoint:
    """Each of items 3, 4 and 5 has one friend; nothing else keeps company with anything."""
    folder = tmp_path / "blended"
    embedding_NE = build(folder).catalog_tensors().embedding_NE
    near = np.full((60, 2), NONE, np.int32)
    cosine = np.zeros((60, 2), np.float32)
    for item, friend in FRIENDS.items():
        near[item, 0], cosine[item, 0] = friend, 0.9
    neighbours = Neighbours(near, cosine, log_densities(embedding_NE, WEIGHTS.temperature))
    return blended_with(folder, neighbours, WEIGHTS)


async def test_friends_of_the_history_come_first_and_scores_fall(blended: Checkpoint) -> None:
    async with running(blended) as service:
        answer = await service.recommend(history=["item-3", "item-4", "item-5"], num_results=20)
    assert set(ids(answer)[:3]) == {"item-42", "item-41", "item-40"}
    scores = [item["score"] for item in answer["items"]]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0
    assert {item["source"] for item in answer["items"]} == {"model"}


async def test_a_friend_that_is_excluded_filtered_seen_or_deleted_does_not_come(blended: Checkpoint) -> None:
    async with running(blended) as service:
        excluded = await service.recommend(history=["item-3"], exclude_item_ids=["item-40"])
        filtered = await service.recommend(history=["item-3"], filter={"max": {"year": 2000}})
        seen = await service.recommend(history=["item-40", "item-3"])
        await service.client.delete("/items/item-40")
        deleted = await service.recommend(history=["item-3"])
    for answer in (excluded, filtered, seen, deleted):
        assert answer["items"] and "item-40" not in ids(answer)


async def test_the_setting_leaves_the_model_alone(blended: Checkpoint) -> None:
    async with running(blended, blend=False) as service:
        alone = ids(await service.recommend(history=["item-3"]))
        assert (await service.client.get("/v1/model")).json()["blend"] is None
    async with running(blended) as service:
        assert ids(await service.recommend(history=["item-3"])) != alone
        assert (await service.client.get("/v1/model")).json()["blend"]["company"] == 0.5


async def test_a_history_of_posted_items_alone_is_ranked_as_the_model_ranks_it(blended: Checkpoint) -> None:
    orders = []
    for blend in (True, False):
        async with running(blended, blend=blend, new_item_share=0) as service:
            await service.item(item_id="posted", title="a film")
            orders.append(ids(await service.recommend(history=["posted"], num_results=20)))
    assert orders[0] == orders[1] and len(orders[0]) == 20


async def test_more_places_than_there_are_candidates_are_filled_once_each(blended: Checkpoint) -> None:
    async with running(blended) as service:
        await service.item(item_id="posted", title="a film")
        repeated = await service.recommend(history=["item-3", "item-3", "posted"], num_results=100, exclude_seen=False)
        few = await service.recommend(history=["item-3"], num_results=100, filter={"min": {"year": 2029}})
    assert len(ids(repeated)) == len(set(ids(repeated))) == 61
    assert set(ids(few)) == {f"item-{n}" for n in range(39, 60)}
    for answer in (repeated, few):
        scores = [item["score"] for item in answer["items"]]
        assert scores == sorted(scores, reverse=True) and scores[0] <= 0


async def test_explanations_of_what_the_beam_did_not_find_have_no_level_scores(blended: Checkpoint) -> None:
    async with running(blended, beam_width=1) as service:
        answer = await service.recommend(history=["item-3", "item-4", "item-5"], explain=True, num_results=2)
        found = service.engine.requests[-1].beam_width
    levels = [item["explanation"]["level_scores"] for item in answer["items"]]
    assert found == 2 and len(levels) == 2 and [] in levels
    for item in answer["items"]:
        parts = item["explanation"]["blend"]
        assert (parts["model"] > 0) == bool(item["explanation"]["level_scores"])
        assert (
            math.log(parts["model"]) == pytest.approx(sum(item["explanation"]["level_scores"])) if parts["model"] else 1
        )
        assert (parts["companion"] in {"item-3", "item-4", "item-5"}) == (parts["company"] > 0)


async def test_without_a_blend_an_explanation_has_no_parts(blended: Checkpoint) -> None:
    async with running(blended, blend=False) as service:
        answer = await service.recommend(history=["item-3"], explain=True)
    assert all("blend" not in item["explanation"] for item in answer["items"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda n: dataclasses.replace(n, neighbour_NQ=n.neighbour_NQ + 60), r"a neighbour lies outside 0\.\.59"),
        (lambda n: dataclasses.replace(n, log_density_N=n.log_density_N[:-1]), "one row for each of the 60 items"),
    ],
)
def test_neighbours_that_do_not_fit_are_refused(blended: Checkpoint, fault: object, message: str) -> None:
    from safetensors.torch import load_file

    stored = Neighbours.from_tensors(load_file(blended.folder / NEIGHBOURS))
    broken = blended_with(blended.folder, fault(stored), WEIGHTS)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=f"{NEIGHBOURS}: .*{message}"):
        broken.blend()
    assert (blended.folder / MANIFEST).exists()
