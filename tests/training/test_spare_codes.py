"""A model that was really trained with spare codes: they teach nothing, they are exported, and a service opens them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from service.app import Parts
from service.engine.base import EngineOptions
from service.engine.torch_engine import start_torch_engine
from service.model.checkpoint import Checkpoint, open_checkpoint
from service.stores.memory_items import MemoryItemLog
from tests.integration.test_codes_while_serving import KIND, KindEncoder, open_codes, post_kind, sid_of
from tests.service_doubles import ids, running
from tests.training.tiny_run import TinyWorld

CODES, SPARE = 6, 2
OPTIONS = EngineOptions("float32", max_batch_users=4, kv_cache_gib=0.1, omp_threads=1, smoothing_boost=1.0)


@pytest.fixture(scope="module")
def trained(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp("spare") / "run"
    sids = {"codes": CODES, "spare_codes": SPARE}
    world.pipeline(folder, sids=sids, finetune={"epochs": 1}, evaluate={"max_users": 5}).train()
    return open_checkpoint(folder / "checkpoint")


def test_the_export_says_which_codes_are_spare_and_no_item_has_one(trained: Checkpoint) -> None:
    assert trained.manifest.sid.codes == CODES + SPARE and trained.manifest.sid.spare_codes == SPARE
    assert int(trained.catalog_tensors().codes_NL.max()) < CODES == trained.quantizer().codes
    assert all(torch.isfinite(rows).all() for rows in trained.token_rows())


async def test_a_service_opens_a_code_of_it_and_recommends_below(trained: Checkpoint) -> None:
    engine = await start_torch_engine(trained, OPTIONS)
    untouched = engine._model.level_head(0)[CODES].clone()
    parts = Parts(engine=engine, encoder=KindEncoder(trained), item_log=MemoryItemLog())
    async with running(trained, parts, allow_volatile=True, code_min_items=10, request_timeout_ms=30_000) as service:
        await post_kind(service)
        opened = await open_codes(service)
        assert [(code["level"], code["code"]) for code in opened["codes"]] == [(0, CODES)]
        assert opened["moved"] == KIND == opened["codes"][0]["items"]
        assert all([(await sid_of(service, f"new-{n}"))[0] == CODES for n in range(KIND)])
        assert not engine._model.level_head(0)[CODES].equal(untouched)
        answer = await service.recommend(history=["new-1"], num_results=50, timeout_ms=30_000)  # of it and like it
    found, scores = ids(answer), [item["score"] for item in answer["items"]]
    assert not answer["degraded"] and {f"new-{n}" for n in range(KIND)} & set(found)
    assert np.isfinite(scores).all() and scores == sorted(scores, reverse=True)
