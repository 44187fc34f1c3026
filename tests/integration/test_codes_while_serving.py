"""Codes are opened under load: no request fails, replicas and restarts end alike, going back closes what was opened."""

import asyncio
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.app import Parts
from service.catalog_history import CatalogHistory
from service.engine.base import EngineOptions
from service.engine.torch_engine import TorchEngine, start_torch_engine
from service.lane_assembly import log_key, redis_log
from service.model.checkpoint import Checkpoint
from service.settings import Settings
from tests.service_doubles import FakeEncoder, Running, exact_checkpoint, running
from tests.tiny_checkpoint import Shape

SHAPE = Shape(levels=3, codes=8, items=60, memory=True, spare_codes=4)
OPTIONS = EngineOptions("float32", max_batch_users=8, kv_cache_gib=0.1, omp_threads=1, smoothing_boost=1.0)
KIND = 12


class KindEncoder(FakeEncoder):
    """Texts "kind N" lie near one place, as far from every code of the first level as the codes leave room."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        book_KD = checkpoint.quantizer().codebooks_LKD[0].numpy()
        tried = np.random.default_rng(0).normal(size=(2000, book_KD.shape[1]))
        tried[:, np.abs(book_KD).sum(0) == 0] = 0
        tried /= np.linalg.norm(tried, axis=1, keepdims=True)
        self._kind = tried[(tried @ book_KD.T).max(1).argmin()]

    def _embed(self, text: str) -> NDArray[np.float32]:
        if not re.search(r"kind \d+", text):
            return super()._embed(text)
        noise = np.random.default_rng(zlib.crc32(text.encode())).normal(size=len(self._kind))
        vector = self._kind + 0.03 * noise
        return np.asarray(vector / np.linalg.norm(vector), np.float32)


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return exact_checkpoint(Path(tmp_path_factory.mktemp("spare")) / "tiny", SHAPE)


async def served(spare: Checkpoint) -> tuple[TorchEngine, Parts]:
    engine = await start_torch_engine(spare, OPTIONS)
    return engine, Parts(engine=engine, encoder=KindEncoder(spare))


def serving(spare: Checkpoint, parts: Parts, redis_url: str) -> Any:
    return running(spare, parts, redis_url=redis_url, code_min_items=10, request_timeout_ms=30_000)


async def post_kind(service: Running) -> None:
    items = [{"item_id": f"new-{n}", "title": f"kind {n}"} for n in range(KIND)]
    await service.post("/items", [*items, {"item_id": "known", "title": "like Title 7"}])


async def report(service: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get("/model")).json()
    return {name: found[name] for name in ("catalog_version", "catalog_hash")}


async def alike(one: Running, two: Running) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (told := await report(one)) != await report(two):
            await asyncio.sleep(0.02)
    return told


async def answer(service: Running, history: list[str]) -> list[tuple[str, float]]:
    found = await service.recommend(history=history, num_results=40, timeout_ms=30_000)
    assert not found["degraded"]
    return [(item["item_id"], round(item["score"], 4)) for item in found["items"]]


async def sid_of(service: Running, item_id: str) -> list[int]:
    found: list[int] = (await service.client.get(f"/items/{item_id}")).json()["semantic_id"]
    return found


async def open_codes(service: Running, *, dry_run: bool = False) -> dict[str, Any]:
    answer = await service.client.post("/v1/catalog/codes", json={"dry_run": dry_run})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["models"][0]
    return found


async def test_a_kind_gets_its_code_under_load_on_all_replicas_and_after_a_restart(
    spare: Checkpoint, redis_url: str
) -> None:
    (engine, first), (_, second) = await served(spare), await served(spare)
    untouched = engine._model.level_head(0)[SHAPE.codes].clone()
    async with serving(spare, first, redis_url) as one, serving(spare, second, redis_url) as two:
        await post_kind(one)
        await alike(one, two)
        foreseen = await open_codes(one, dry_run=True)
        assert [code["items"] for code in foreseen["codes"]] == [KIND] and foreseen["moved"] == 0
        assert (await sid_of(one, "new-1"))[0] < SHAPE.codes

        ended = asyncio.Event()

        async def ask(service: Running, user: int) -> int:
            asked = 0
            while not ended.is_set() or not asked:
                await answer(service, [f"item-{user}", "new-1", "new-2"])
                asked += 1
            return asked

        load = [asyncio.create_task(ask(service, user)) for service in (one, two) for user in range(3)]
        await asyncio.sleep(0.2)
        opened = await open_codes(one)
        told = await alike(one, two)
        ended.set()
        assert min(await asyncio.gather(*load)) >= 1

        assert [(code["level"], code["code"]) for code in opened["codes"]] == [(0, SHAPE.codes)]
        assert opened["moved"] == KIND and opened["free"] == [3, 4, 0]
        assert {(await sid_of(two, f"new-{n}"))[0] for n in range(KIND)} == {SHAPE.codes}
        assert (await sid_of(two, "known"))[0] < SHAPE.codes
        assert not engine._model.level_head(0)[SHAPE.codes].equal(untouched)
        history = ["item-3", "new-1"]
        before = await answer(one, history)
        assert await answer(two, history) == before
        assert (await one.item(item_id="late", title="kind 99"))["semantic_id"][0] == SHAPE.codes
        again = await open_codes_later(spare, two, redis_url)
        assert again["codes"] == [] and again["moved"] == 0
        told = await alike(one, two)
        before = await answer(one, history)
    _, third = await served(spare)
    async with serving(spare, third, redis_url) as restarted:
        assert await report(restarted) == told
        assert await answer(restarted, history) == before


async def open_codes_later(spare: Checkpoint, service: Running, redis_url: str) -> dict[str, Any]:
    """Once the lease of the last opening is over."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.delete(f"groundrec:{{{log_key(spare)}}}:lease:open-codes")
    return await open_codes(service)


async def test_going_back_closes_the_code_and_gives_the_items_their_old_sids(spare: Checkpoint, redis_url: str) -> None:
    engine, parts = await served(spare)
    untouched = engine._model.level_head(0)[SHAPE.codes].clone()
    async with serving(spare, parts, redis_url) as service:
        await post_kind(service)
        told, sid = await report(service), await sid_of(service, "new-1")
        before = await answer(service, ["item-3", "new-1"])
        await open_codes(service)
        assert await sid_of(service, "new-1") != sid
        settings: dict[str, Any] = {"checkpoint": spare.folder, "redis_url": redis_url}
        log = redis_log(Settings(**settings), spare)
        back = await CatalogHistory(log).rollback(told["catalog_version"])
        await log.close()
        async with asyncio.timeout(10):
            while (await report(service))["catalog_version"] != back.version:
                await asyncio.sleep(0.02)
        assert (await report(service))["catalog_hash"] == told["catalog_hash"]
        assert await sid_of(service, "new-1") == sid
        assert engine._model.level_head(0)[SHAPE.codes].equal(untouched)
        assert await answer(service, ["item-3", "new-1"]) == before
        assert (await open_codes_later(spare, service, redis_url))["moved"] == KIND


async def test_a_second_opener_at_once_is_told_to_wait(spare: Checkpoint, redis_url: str) -> None:
    _, parts = await served(spare)
    async with serving(spare, parts, redis_url) as service:
        await open_codes(service)
        refused = await service.client.post("/catalog/codes", json={})
        assert refused.status_code == 409 and "try again" in refused.json()["detail"]


async def test_a_checkpoint_without_spare_codes_says_so(checkpoint: Checkpoint) -> None:
    async with running(checkpoint) as service:
        refused = await service.client.post("/catalog/codes", json={})
        assert refused.status_code == 409 and "sids.spare_codes" in refused.json()["detail"]
