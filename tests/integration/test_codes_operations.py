"""Opening codes as an operator meets it: by the command, by itself, and back out of a backup."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from service.app import Parts
from service.catalog_cli import catalog_app
from service.client import Item, RecClient
from service.errors import StartupError
from service.model.checkpoint import Checkpoint
from service.settings import Settings
from service.stores.memory_items import MemoryItemLog
from tests.integration.test_backup import restore, save
from tests.integration.test_codes_while_serving import (
    KIND,
    SHAPE,
    KindEncoder,
    answer,
    open_codes,
    post_kind,
    report,
    served,
    serving,
    sid_of,
)
from tests.live_service import live_service
from tests.service_doubles import FakeEngine, exact_checkpoint, running

SECONDS = 60


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return exact_checkpoint(Path(tmp_path_factory.mktemp("spare")) / "tiny", SHAPE)


def command(*arguments: str) -> str:
    result = CliRunner().invoke(catalog_app, ["open-codes", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_foresees_and_then_opens_what_it_foresaw(spare: Checkpoint) -> None:
    settings: dict[str, Any] = {"checkpoint": spare.folder, "allow_volatile": True, "code_min_items": 10}
    parts = Parts(engine=FakeEngine(spare), encoder=KindEncoder(spare), item_log=MemoryItemLog())
    with live_service(Settings(**settings), parts) as url, RecClient(url) as client:
        client.post_items([Item(f"new-{n}", f"kind {n}") for n in range(KIND)])
        version = client.model()["catalog_version"]
        foreseen = command("--url", url, "--dry-run")
        assert "1 codes worth opening" in foreseen and "0 items moved" in foreseen
        assert client.model()["catalog_version"] == version
        opened = command("--url", url)
        assert f"level 0 code {SHAPE.codes}: {KIND} items" in opened and "kind " in opened
        assert f"{KIND} items moved" in opened and "spare codes left (3, 4, 0)" in opened
        assert client.model()["catalog_version"] > version


def test_the_command_says_in_one_line_what_it_cannot_reach() -> None:
    result = CliRunner().invoke(catalog_app, ["open-codes", "--url", "http://127.0.0.1:1"])
    assert isinstance(result.exception, StartupError) and "--url http://127.0.0.1:1" in str(result.exception)


async def test_a_service_that_is_told_minutes_opens_codes_by_itself(spare: Checkpoint) -> None:
    parts = Parts(engine=FakeEngine(spare), encoder=KindEncoder(spare), item_log=MemoryItemLog())
    wanted: dict[str, Any] = {"allow_volatile": True, "code_min_items": 10, "open_codes_minutes": 0.001}
    async with running(spare, parts, **wanted) as service:
        await post_kind(service)
        async with asyncio.timeout(SECONDS):
            while any([(await sid_of(service, f"new-{n}"))[0] != SHAPE.codes for n in range(KIND)]):
                await asyncio.sleep(0.05)
        assert (await sid_of(service, "known"))[0] < SHAPE.codes


async def test_an_opened_code_is_back_after_everything_was_lost(
    spare: Checkpoint, redis_url: str, tmp_path: Path
) -> None:
    file, history = tmp_path / "groundrec.backup", ["item-3", "new-1"]
    engine, parts = await served(spare)
    async with serving(spare, parts, redis_url) as service:
        await post_kind(service)
        await open_codes(service)
        told, before = await report(service), await answer(service, history)
        row_D = engine._model.level_head(0)[SHAPE.codes].clone()
        saved = await save(redis_url, file)
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    assert await restore(redis_url, file) == saved
    engine, parts = await served(spare)
    assert not engine._model.level_head(0)[SHAPE.codes].equal(row_D)
    async with serving(spare, parts, redis_url) as service:
        assert await report(service) == told
        assert engine._model.level_head(0)[SHAPE.codes].equal(row_D)
        assert (await sid_of(service, "new-1"))[0] == SHAPE.codes
        assert await answer(service, history) == before
