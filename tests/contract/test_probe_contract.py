"""What probes, metrics and GET /model say, and what happens when a client goes away."""

import asyncio
import re
from typing import Any

import pytest

from service.errors import EngineError
from service.health import MISSES_ALLOWED, patience_of, pause_after
from service.model.checkpoint import Checkpoint
from tests.service_doubles import Running, running

DOCUMENTED = {
    "rec_beam_rows",
    "rec_build_info",
    "rec_catalog_items",
    "rec_catalog_version",
    "rec_circuit_open",
    "rec_dependency_up",
    "rec_engine_canary_seconds",
    "rec_events_total",
    "rec_fallback_total",
    "rec_feedback_lost_total",
    "rec_feedback_total",
    "rec_history_truncated_total",
    "rec_illegal_sid_total",
    "rec_inflight",
    "rec_item_grounding_seconds",
    "rec_item_visible_lag_seconds",
    "rec_items_total",
    "rec_request_seconds",
    "rec_requests_total",
    "rec_served_items_total",
    "rec_shed_total",
    "rec_stage_seconds",
    "rec_trie_bytes",
}


async def ready(service: Running) -> tuple[int, list[str]]:
    answer = await service.client.get("/health/ready")
    return answer.status_code, answer.json()["reasons"]


async def test_a_started_service_is_live_and_ready(service: Running) -> None:
    assert (await service.client.get("/health/live")).status_code == 200
    assert await ready(service) == (200, [])
    assert (await service.client.get("/health")).json()["status"] == "ready"


async def test_the_catalogues_hash_is_told_and_moves_with_its_items(service: Running) -> None:
    before = (await service.client.get("/model")).json()["catalog_hash"]
    await service.item(item_id="new", title="like Title 7")
    after = (await service.client.get("/model")).json()["catalog_hash"]
    assert re.fullmatch("[0-9a-f]{32}", after) and after != before
    assert (await service.client.delete("/items/new")).status_code == 200
    assert (await service.client.get("/model")).json()["catalog_hash"] == before


@pytest.mark.parametrize("trouble", ["dead", "hung"])
async def test_ready_does_not_say_200_while_the_engine_is_dead_or_hung_vllm_39863(
    checkpoint: Checkpoint, trouble: str
) -> None:
    async with running(checkpoint, canary_seconds=0.03) as service:
        service.engine.failure = EngineError("gone") if trouble == "dead" else None
        service.engine.hangs = trouble == "hung"
        async with asyncio.timeout(5):
            while (await ready(service))[0] == 200:
                await asyncio.sleep(0.01)
        assert await ready(service) == (503, ["engine_unavailable"])
        assert (await service.client.get("/health/live")).status_code == 200
        service.engine.failure, service.engine.hangs = None, False
        async with asyncio.timeout(5):
            while (await ready(service))[0] == 503:
                await asyncio.sleep(0.01)


async def test_a_dead_engine_unreadies_at_once_without_waiting_for_canaries(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, canary_seconds=600.0) as service:
        assert await ready(service) == (200, [])
        service.engine.death.set()
        async with asyncio.timeout(60):
            while (await ready(service))[0] == 200:
                await asyncio.sleep(0.01)
        assert await ready(service) == (503, ["engine_unavailable"])
        assert not service.service.health.engine_lost  # the next canary says that, and the process ends


def test_an_engine_that_hangs_just_after_a_canary_is_noticed_within_four_periods() -> None:
    patience = patience_of(2.0)
    until_the_next = pause_after(took=0.0, period_seconds=2.0)
    missed = MISSES_ALLOWED * patience + (MISSES_ALLOWED - 1) * pause_after(took=patience, period_seconds=2.0)
    assert until_the_next + missed < 8.0
    assert pause_after(took=5.0, period_seconds=2.0) == 0.0


async def test_one_missed_canary_does_not_unready(service: Running) -> None:
    health, model = service.service.health, (await service.client.get("/v1/model")).json()["model_version"]
    health.canary(model, alive=False)
    health.canary(model, alive=False)
    assert await ready(service) == (200, [])
    health.canary(model, alive=False)
    assert await ready(service) == (503, ["engine_unavailable"])


async def test_a_draining_replica_is_unready_and_still_answers(service: Running) -> None:
    service.service.health.drain()
    assert await ready(service) == (503, ["draining"])
    assert len((await service.recommend(history=["item-1"]))["items"]) == 10


async def test_background_work_that_dies_makes_the_replica_unready(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, items_timeout_ms=2000, canary_seconds=60) as service:
        service.engine.failure, service.engine.failing_updates = ZeroDivisionError("a bug"), 1
        await service.item(item_id="a", title="b")
        assert await ready(service) == (503, ["catalog_sync_stopped"])


async def exposed(service: Running) -> str:
    return (await service.client.get("/metrics")).text


async def test_metrics_count_requests_items_and_fallbacks_without_naming_anyone(service: Running) -> None:
    await service.recommend(history=["item-1"])
    await service.recommend(user_id="private-user")
    await service.client.post("/v1/recommend", json={"num_results": 0})
    await service.item(item_id="private-item", title="private title")
    text = await exposed(service)
    assert 'rec_requests_total{outcome="ok",route="/recommend"} 2.0' in text
    assert 'rec_requests_total{outcome="invalid",route="/recommend"} 1.0' in text
    assert 'rec_fallback_total{reason="cold_user"} 1.0' in text
    assert 'rec_items_total{result="created"} 1.0' in text
    assert "rec_catalog_items 61.0" in text and "rec_catalog_version 1.0" in text
    assert "rec_illegal_sid_total 0.0" in text
    assert "private" not in text


async def test_every_documented_metric_is_exposed(service: Running) -> None:
    await service.item(item_id="a", title="b")
    names = set(re.findall(r"^# TYPE (\w+)", await exposed(service), re.MULTILINE))
    assert names >= DOCUMENTED


async def test_metrics_tell_what_the_engine_holds(service: Running) -> None:
    async with asyncio.timeout(5):
        while "rec_trie_bytes 1234.0" not in (text := await exposed(service)):
            await asyncio.sleep(0.01)
    assert (
        "rec_engine_free_blocks 9.0" in text
        and "rec_engine_requests " in text
        and 'rec_engine_prompt_tokens{source="prefix_cache"}' in text
    )


async def test_an_unknown_path_is_no_label(service: Running) -> None:
    await service.client.get("/somebody/private")
    text = await exposed(service)
    assert 'route="unmatched"' in text and "somebody" not in text


async def test_model_names_versions_shape_and_defaults(service: Running, checkpoint: Checkpoint) -> None:
    await service.item(item_id="a", title="b")
    for path in ("/model", "/v1/model"):
        model = (await service.client.get(path)).json()
        assert model["model_version"] == checkpoint.manifest.model_version
        assert (model["catalog_version"], model["catalog_items"], model["new_items"]) == (1, 61, 1)
        assert (model["levels"], model["codes"], model["beam_width"], model["exclude_seen"]) == (3, 16, 20, True)


async def test_dropped_clients_do_not_keep_computing_production_stack_634(service: Running) -> None:
    service.engine.hangs = True
    gone = asyncio.Event()
    body = iter([{"type": "http.request", "body": b'{"history": ["item-1"]}', "more_body": False}])

    async def receive() -> dict[str, Any]:
        if message := next(body, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to answer")

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/recommend", "headers": headers, "query_string": b""}
    call = asyncio.create_task(service.service.app(scope, receive, send))
    while not service.engine.requests:
        await asyncio.sleep(0)
    gone.set()
    await asyncio.wait_for(call, 5)
    assert service.engine.cancelled == 1
    assert "rec_inflight 0.0" in await exposed(service)


async def test_the_engine_is_closed_with_the_service(checkpoint: Checkpoint) -> None:
    async with running(checkpoint) as service:
        engine = service.engine
        assert not engine.closed
    assert engine.closed
