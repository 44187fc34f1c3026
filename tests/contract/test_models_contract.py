"""Two models beside each other: traffic by share, shadows, and an exchange that drops nothing."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service.app import Parts
from service.client import AsyncRecClient, ServedModel
from service.errors import EngineError, RefusedError, StartupError
from service.model.checkpoint import Checkpoint
from service.models_cli import models_app
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import FakeEncoder, FakeEngine, Running, exact_checkpoint, ids, running
from tests.tiny_checkpoint import Shape


@dataclass
class World:
    """A root with two checkpoints, and the stand-ins of what is opened from it."""

    root: Path
    first: Checkpoint
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    logs: dict[str, MemoryItemLog] = field(default_factory=dict)

    def parts(self, checkpoint: Checkpoint) -> Parts:
        """A log for each quantiser, an engine for each model."""
        engine = self.engines[checkpoint.manifest.model_version] = FakeEngine(checkpoint)
        key = checkpoint.manifest.files["quantizer.safetensors"].sha256
        log = self.logs.setdefault(key, MemoryItemLog())
        return Parts(engine, FakeEncoder(checkpoint), log, further=self.parts)

    @asynccontextmanager
    async def serve(self, **settings: Any) -> AsyncIterator[Running]:
        parts = replace(self.parts(self.first), histories=MemoryHistory())
        async with running(self.first, parts, allow_volatile=True, **settings) as service:
            yield service


@pytest.fixture
def world(tmp_path: Path) -> World:
    """``other`` has another seed, hence other SIDs and another quantiser."""
    first = exact_checkpoint(tmp_path / "first", Shape())
    exact_checkpoint(tmp_path / "other", Shape(seed=7))
    return World(tmp_path, first)


async def models(service: Running) -> dict[str, dict[str, Any]]:
    answer = await service.client.get("/v1/models")
    return {Path(model["checkpoint"]).name: model for model in answer.json()["models"]}


async def opened(service: Running, name: str, **body: Any) -> dict[str, Any]:
    answer = await service.client.post("/v1/models", json={"checkpoint": name, **body})
    assert answer.status_code == 202, answer.text
    async with asyncio.timeout(20):
        while (found := (await models(service)).get(name, {})).get("state") == "opening":
            await asyncio.sleep(0.01)
    return found


async def answered_by(service: Running, users: int = 200) -> Counter[str]:
    answers = [await service.recommend(user_id=f"u{n}", history=["item-1"]) for n in range(users)]
    return Counter(answer["model_version"] for answer in answers)


async def test_a_second_model_answers_its_share_of_users_and_each_answer_says_which(world: World) -> None:
    async with world.serve() as service:
        first = (await models(service))["first"]["model_version"]
        other = await opened(service, "other", share=0.5)
        assert other["state"] == "open" and other["well"]
        found = await answered_by(service)
        assert set(found) == {first, other["model_version"]}
        assert 0.2 < found[other["model_version"]] / 200 < 0.47
        again = await service.recommend(user_id="u3", history=["item-1"])
        assert again["model_version"] == (await service.recommend(user_id="u3", history=["item-2"]))["model_version"]
        changed = await service.client.patch(f"/v1/models/{other['model_version']}", json={"share": 0})
        assert changed.status_code == 200
        assert set(await answered_by(service, 50)) == {first}


async def test_settings_may_name_further_models(world: World) -> None:
    further = [{"checkpoint": world.root / "other", "share": 3}]
    async with world.serve(further_models=further) as service:
        found = await answered_by(service)
        other = (await models(service))["other"]["model_version"]
        assert found[other] / 200 > 0.6
        assert (await service.client.get("/v1/model")).json()["model_version"] == other


async def test_an_exchange_under_load_drops_no_request(world: World) -> None:
    async with world.serve() as service:
        first = (await models(service))["first"]["model_version"]
        seen: Counter[tuple[int, str]] = Counter()
        stop = asyncio.Event()

        async def client(number: int) -> None:
            while not stop.is_set():
                body = {"user_id": f"c{number}", "history": ["item-1"]}
                answer = await service.client.post("/v1/recommend", json=body)
                seen[answer.status_code, answer.json().get("model_version", "")] += 1
                await asyncio.sleep(0)

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        other = (await opened(service, "other", replace=True))["model_version"]
        async with asyncio.timeout(60):
            while "first" in await models(service) or not world.engines[first].closed:
                await asyncio.sleep(0.01)
        assert not world.engines[other].closed
        before = seen[200, other]
        async with asyncio.timeout(60):
            while seen[200, other] < before + 50:
                await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*clients)
        assert {status for status, _ in seen} == {200}
        assert seen[200, first] and seen[200, other]


async def test_a_request_at_work_is_answered_by_the_model_it_began_with(world: World) -> None:
    async with world.serve() as service:
        first = (await models(service))["first"]["model_version"]
        engine = world.engines[first]
        release = asyncio.Event()
        recommend = engine.recommend

        async def slow(request_id: str, request: Any) -> Any:
            await release.wait()
            return await recommend(request_id, request)

        engine.recommend = slow  # type: ignore[method-assign]
        at_work = asyncio.create_task(service.recommend(history=["item-1"]))
        await asyncio.sleep(0.05)
        await opened(service, "other", replace=True)
        assert (await models(service))["first"]["state"] == "closing"
        assert not engine.closed
        release.set()
        answer = await at_work
        assert (answer["model_version"], answer["degraded"]) == (first, False)


async def test_what_was_posted_is_carried_over_to_a_model_with_other_codes(world: World) -> None:
    async with world.serve() as service:
        await service.item(item_id="posted", title="like Title 7", attributes={"colour": "red"})
        await service.client.delete("/v1/items/item-5")
        await opened(service, "other", replace=True)
        async with asyncio.timeout(20):
            while "first" in await models(service):
                await asyncio.sleep(0.01)
        assert (await service.client.get("/v1/items/posted")).json()["attributes"] == {"colour": "red"}
        assert (await service.client.get("/v1/items/item-5")).status_code == 404
        found = ids(await service.recommend(history=["item-1"], num_results=100))
        assert "posted" in found and "item-5" not in found


async def test_items_are_posted_to_every_models_log(world: World) -> None:
    async with world.serve() as service:
        await opened(service, "other", share=1)
        await service.item(item_id="posted", title="like Title 7")
        lists = [ids(await service.recommend(user_id=f"u{n}", history=["item-1"], num_results=100)) for n in range(20)]
        assert all("posted" in found for found in lists)
        assert (await service.client.delete("/v1/items/posted")).status_code == 200
        lists = [ids(await service.recommend(user_id=f"u{n}", history=["item-1"], num_results=100)) for n in range(20)]
        assert not any("posted" in found for found in lists)


async def test_a_shadow_ranks_what_others_answer_and_answers_nobody(world: World) -> None:
    async with world.serve() as service:
        shadow = await opened(service, "other", shadow=True)
        first = (await models(service))["first"]["model_version"]
        assert set(await answered_by(service, 20)) == {first}
        wanted = f'rec_shadow_total{{model_version="{shadow["model_version"]}",outcome="ranked"}}'
        async with asyncio.timeout(10):
            while wanted not in (text := (await service.client.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert f'rec_shadow_overlap_count{{model_version="{shadow["model_version"]}"}}' in text
        world.engines[shadow["model_version"]].failure = EngineError("gone")
        assert (await service.recommend(history=["item-1"]))["degraded"] is False


async def test_a_model_whose_engine_is_silent_loses_its_traffic(world: World) -> None:
    async with world.serve(canary_seconds=0.03) as service:
        other = (await opened(service, "other", share=1000))["model_version"]
        world.engines[other].failure = EngineError("gone")
        async with asyncio.timeout(10):
            while (await models(service))["other"]["well"]:
                await asyncio.sleep(0.01)
        assert (await service.client.get("/health/ready")).status_code == 200
        found = await answered_by(service, 20)
        assert other not in found


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"checkpoint": "missing"}, 422, "no checkpoint"),
        ({"checkpoint": "../elsewhere"}, 422, "outside"),
        ({"checkpoint": "/etc"}, 422, "outside"),
        ({"checkpoint": "first"}, 409, "served already"),
        ({"checkpoint": "other", "share": -1}, 422, "greater than or equal"),
        ({"checkpoint": "other", "shaer": 1}, 422, "share"),
    ],
)
async def test_what_cannot_be_opened_is_refused(world: World, body: dict[str, Any], status: int, said: str) -> None:
    async with world.serve() as service:
        answer = await service.client.post("/v1/models", json=body)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text


async def test_a_broken_checkpoint_changes_nothing_and_says_why(world: World) -> None:
    broken = world.root / "broken"
    shutil.copytree(world.root / "other", broken)
    (broken / "quantizer.safetensors").write_bytes(b"torn")
    async with world.serve() as service:
        failed = await opened(service, "broken", replace=True)
        assert failed["state"] == "failed" and "quantizer.safetensors" in failed["fault"]
        assert (await service.recommend(history=["item-1"]))["degraded"] is False
        assert len(await models(service)) == 2


async def test_the_last_model_with_traffic_cannot_go(world: World) -> None:
    async with world.serve() as service:
        first = (await models(service))["first"]["model_version"]
        await opened(service, "other")
        for answer in (
            await service.client.delete(f"/v1/models/{first}"),
            await service.client.patch(f"/v1/models/{first}", json={"share": 0}),
        ):
            assert answer.status_code == 409
        assert (await service.client.delete("/v1/models/unknown")).status_code == 404


async def test_the_client_opens_shares_and_closes(world: World) -> None:
    async with world.serve() as service:
        transport = httpx.ASGITransport(service.service.app)
        async with AsyncRecClient("http://groundrec", transport=transport, timeout_seconds=20) as client:
            assert (await client.open_model("other", share=0.5)).state == "opening"
            async with asyncio.timeout(20):
                while (other := (await client.models())[-1]).state == "opening":
                    await asyncio.sleep(0.01)
            assert other.model_version is not None and other.well
            assert (await client.change_model(other.model_version, share=2, shadow=True)).shadow
            assert (await client.close_model(other.model_version)).state == "closing"
            with pytest.raises(RefusedError, match="outside"):
                await client.open_model("../elsewhere")


def test_the_commands_say_what_is_served_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failed = (
        ServedModel("/m/a", "open", "v1", 0.5, True, True, 3, 7),
        ServedModel("/m/b", "failed", fault="torn"),
    )
    states = iter([ServedModel("/m/b", "opening"), failed])

    class Client:
        def __init__(self, url: str, **_: Any) -> None:
            assert url == "http://replica"

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None: ...

        def models(self) -> list[ServedModel]:
            return [opened, next(states)]

        def open_model(self, checkpoint: str, **options: Any) -> ServedModel:
            assert (checkpoint, options) == ("b", {"share": 0.0, "shadow": False, "replace": True})
            return ServedModel("/m/b", "opening")

        def change_model(self, version: str, **options: Any) -> ServedModel:
            assert (version, options) == ("v1", {"share": 0.5, "shadow": None})
            return opened

    monkeypatch.setattr("service.client.RecClient", Client)
    monkeypatch.setattr("service.models_cli.POLL_SECONDS", 0)
    runner = CliRunner()
    result = runner.invoke(models_app, ["open", "b", "--replace", "--url", "http://replica"])
    assert isinstance(result.exception, StartupError) and "torn" in str(result.exception)
    shared = runner.invoke(models_app, ["share", "v1", "0.5", "--url", "http://replica"])
    assert " ".join(shared.output.split()) == "open v1 share 0.5, shadow, well, 3 at work, catalogue 7 /m/a"
