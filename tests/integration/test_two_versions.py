"""A rolling upgrade: replicas of an old and a new model live side by side on one Redis, and nobody notices.

Two models of one codebook follow one item log; another codebook has a log of its own, and neither touches the other's.
"""

import asyncio
import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from service.app import Parts
from service.model.checkpoint import (
    CatalogTensors,
    Checkpoint,
    ItemRecord,
    migrate_checkpoint,
    open_checkpoint,
    seal,
)
from tests.service_doubles import Running, exact_checkpoint, ids, running, write_items
from tests.tiny_checkpoint import Shape

REAL = Parts()
PATIENCE = 60


@pytest.fixture
def retrained(checkpoint: Checkpoint, tmp_path: Path) -> Checkpoint:
    """The model after another training on the same codebook: other weights, hence another version."""
    folder = tmp_path / "retrained"
    shutil.copytree(checkpoint.folder, folder)
    weights = next((folder / "lm").glob("*.safetensors"))
    save_file({name: tensor + 0.01 for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    seal(folder, checkpoint.manifest.model_dump(exclude={"files", "model_version"}))
    made = open_checkpoint(folder)
    assert made.manifest.model_version != checkpoint.manifest.model_version
    return made


async def model(service: Running) -> dict[str, object]:
    found: dict[str, object] = (await service.client.get("/v1/model")).json()
    return found


async def agree(*services: Running) -> None:
    """Wait until the replicas' catalogues are equal."""
    async with asyncio.timeout(PATIENCE):
        while len({str((await model(service))["catalog_hash"]) for service in services}) > 1:
            await asyncio.sleep(0.01)


async def shown(service: Running, item_id: str) -> bool:
    """Whether an item is among all that can be recommended."""
    everything = await service.recommend(history=["item-1"], num_results=100)
    return item_id in ids(everything)


async def test_items_posted_to_either_version_are_recommended_by_both(
    checkpoint: Checkpoint, retrained: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as old,
        running(retrained, REAL, redis_url=redis_url) as new,
    ):
        first = await old.item(item_id="by-old", title="like Title 7")
        second = await new.item(item_id="by-new", title="like Title 8")
        await agree(old, new)
        for service in (old, new):
            assert await shown(service, "by-old") and await shown(service, "by-new")
            for posted in (first, second):
                held = (await service.client.get(f"/v1/items/{posted['item_id']}")).json()
                assert held["semantic_id"] == posted["semantic_id"]
        assert (await old.client.delete("/v1/items/by-new")).status_code == 200
        await agree(old, new)
        assert not await shown(new, "by-new")


async def test_histories_and_feedback_cross_the_versions(
    checkpoint: Checkpoint, retrained: Checkpoint, redis_url: str
) -> None:
    async with (
        running(checkpoint, REAL, redis_url=redis_url) as old,
        running(retrained, REAL, redis_url=redis_url) as new,
    ):
        event = {"user_id": "u-1", "item_id": "item-3", "event": "click"}
        await old.post("/events", event)
        answer = await new.recommend(user_id="u-1", num_results=3)
        assert answer["model_version"] == retrained.manifest.model_version
        assert answer["items"][0]["source"] == "model" and "item-3" not in ids(answer)
        clicked = event | {"item_id": ids(answer)[0], "recommendation_id": answer["recommendation_id"]}
        await old.post("/events", clicked)
        told = (await old.client.get("/metrics")).text
        assert f'rec_feedback_total{{event="click",model_version="{answer["model_version"]}"}} 1.0' in told


async def test_a_rollout_and_its_rollback_under_load_fail_nothing_and_lose_nothing(
    checkpoint: Checkpoint, retrained: Checkpoint, redis_url: str
) -> None:
    """Old, old and new, new alone, new and old, old alone; the clients speak to whoever is in service."""
    in_service: list[Running] = []
    answered: set[str] = set()
    posted: dict[str, list[int]] = {}
    over = asyncio.Event()

    async def ask() -> None:
        turn = 0
        while not over.is_set():
            for service in list(in_service):
                answer = await service.recommend(history=["item-1"], num_results=5)
                assert not answer["degraded"]
                answered.add(answer["model_version"])
            found = await in_service[turn % len(in_service)].item(item_id=f"p-{turn}", title=f"like Title {turn % 60}")
            posted[found["item_id"]] = found["semantic_id"]
            turn += 1
            await asyncio.sleep(0)

    async def some_more() -> None:
        wanted = len(posted) + 10
        async with asyncio.timeout(PATIENCE):
            while len(posted) < wanted and not client.done():
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as everybody:

        async def start(made: Checkpoint) -> tuple[Running, AsyncExitStack]:
            own = await everybody.enter_async_context(AsyncExitStack())
            service = await own.enter_async_context(running(made, REAL, redis_url=redis_url))
            in_service.append(service)
            return service, own

        async def leave(service: Running, own: AsyncExitStack) -> None:
            """What a drain is to a client: no new requests, those at work are answered."""
            in_service.remove(service)
            await some_more()
            await own.aclose()

        first = await start(checkpoint)
        client = asyncio.create_task(ask())
        await some_more()
        second = await start(retrained)
        await some_more()
        await leave(*first)
        third = await start(checkpoint)
        await some_more()
        await leave(*second)
        over.set()
        await client
        assert answered == {checkpoint.manifest.model_version, retrained.manifest.model_version}
        for item_id, sid in posted.items():
            held = (await third[0].client.get(f"/v1/items/{item_id}")).json()
            assert held["semantic_id"] == sid
        assert len(posted) >= 50


async def test_an_item_that_the_new_model_was_trained_with_has_the_models_sid_there_and_its_old_one_here(
    checkpoint: Checkpoint, retrained: Checkpoint, redis_url: str
) -> None:
    """Posted under the old model, in the training data of the next: each version knows it once, by its own SID."""
    async with running(checkpoint, REAL, redis_url=redis_url) as old:
        posted = await old.item(item_id="grown-up", title="like Title 7")
        tensors, taken = (
            retrained.catalog_tensors(),
            {tuple(sid) for sid in retrained.catalog_tensors().codes_NL.tolist()},
        )
        free = next(sid for sid in ((1, 1, code) for code in range(16)) if sid not in taken)
        grown = write_items(
            retrained,
            [*retrained.items(), ItemRecord("grown-up", "Grown up", "", {})],
            CatalogTensors(
                np.vstack([tensors.codes_NL, [free]]).astype(tensors.codes_NL.dtype),
                np.vstack([tensors.embedding_NE, tensors.embedding_NE[7]]),
                np.append(tensors.popularity_N, 1).astype(tensors.popularity_N.dtype),
            ),
        )
        async with running(grown, REAL, redis_url=redis_url) as new:
            for service, sid in ((old, posted["semantic_id"]), (new, list(free))):
                held = (await service.client.get("/v1/items/grown-up")).json()
                assert held["semantic_id"] == sid
                answer = await service.recommend(history=["item-1"], num_results=100)
                assert ids(answer).count("grown-up") == 1
            assert "rec_illegal_sid_total 0.0" in (await new.client.get("/metrics")).text
            assert (await new.item(item_id="grown-up", title="like Title 9"))["semantic_id"] == list(free)
            assert (await old.client.get("/v1/items/grown-up")).status_code == 200


async def test_another_codebook_has_another_log_and_neither_touches_the_other(
    checkpoint: Checkpoint, redis_url: str, tmp_path: Path
) -> None:
    other = exact_checkpoint(tmp_path / "other", Shape(levels=3, codes=16, items=60, memory=False, seed=7))
    async with running(checkpoint, REAL, redis_url=redis_url) as old, running(other, REAL, redis_url=redis_url) as new:
        await old.item(item_id="by-old", title="like Title 7")
        await new.item(item_id="by-new", title="like Title 8")
        assert (await old.client.get("/v1/items/by-new")).status_code == 404
        assert (await new.client.get("/v1/items/by-old")).status_code == 404
        carried = (await old.client.get("/v1/items/by-old")).json()
        body = {name: carried[name] for name in ("item_id", "title", "description", "attributes")}
        assert (await new.item(**body))["result"] == "created"
        assert await shown(new, "by-old") and not await shown(old, "by-new")


async def test_a_migrated_checkpoint_lives_beside_the_one_it_was_copied_from(
    checkpoint: Checkpoint, redis_url: str, tmp_path: Path
) -> None:
    for name in ("first-schema", "migrated"):
        shutil.copytree(checkpoint.folder, tmp_path / name)
        manifest = tmp_path / name / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
    assert migrate_checkpoint(tmp_path / "migrated")[0] == 1
    before, after = open_checkpoint(tmp_path / "first-schema"), open_checkpoint(tmp_path / "migrated")
    assert before.manifest.schema_version == 1 < after.manifest.schema_version
    async with running(before, REAL, redis_url=redis_url) as old, running(after, REAL, redis_url=redis_url) as new:
        assert (await model(old))["model_version"] == (await model(new))["model_version"]
        await new.item(item_id="new", title="like Title 7")
        await agree(old, new)
        assert await shown(old, "new")
