"""No user, item, text, query or key is in a log line or a metric, whatever is asked and whatever fails."""

import json
import logging
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from service.errors import EngineError, StorageError
from service.lane_assembly import Parts
from service.model.checkpoint import Checkpoint
from service.stores.base import HistoryEvent
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import FakeEngine, Running, running

PRIVATE = "private"
JSON = {"content-type": "application/json", "authorization": "Bearer private-key", "user-agent": "private-agent"}
ITEM = {"item_id": "private-item", "title": "private-title", "description": "private-text"}
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/recommend", {"user_id": "private-user"}),
    ("POST", "/recommend", {"history": ["item-3", "private-item"], "exclude_item_ids": ["private-item"]}),
    ("POST", "/recommend", {"history": ["item-3"], "filter": {"include": {"private-field": ["private-value"]}}}),
    ("POST", "/recommend", {"history": ["item-3"], "private-field": 1}),
    ("POST", "/recommend", b'{"private-body'),
    ("POST", "/recommend?private-query=1", {"user_id": "private-user"}),
    ("POST", "/recommend:batch", {"requests": [{"user_id": "private-user"}, {"private-field": 1}]}),
    ("POST", "/events", {"user_id": "private-user", "item_id": "item-3", "event": "click"}),
    ("POST", "/events", {"user_id": "private-user", "item_id": "item-3", "event": "private-kind"}),
    ("GET", "/v1/users/private-user/history", None),
    ("DELETE", "/v1/users/private-user", None),
    ("POST", "/items", ITEM),
    ("POST", "/items", {**ITEM, "title": ""}),
    ("GET", "/v1/items/private-item", None),
    ("DELETE", "/v1/items/private-item", None),
    ("POST", "/v1/models", {"checkpoint": "private-folder"}),
    ("GET", "/private-path", None),
]


class TroubledHistory(MemoryHistory):
    """Fails on demand, naming what it was asked for, as a store might."""

    failing = False

    async def recent(self, user_ids: Any, limit: int) -> list[list[str]]:
        return [] if self._fail() else await super().recent(user_ids, limit)

    async def append(self, events: Any) -> list[bool]:
        return [] if self._fail() else await super().append(events)

    async def events(self, user_id: str, limit: int) -> list[HistoryEvent]:
        return [] if self._fail() else await super().events(user_id, limit)

    def _fail(self) -> bool:
        if self.failing:
            raise StorageError("read: Redis is away")
        return False


async def call_everything(service: Running) -> None:
    for method, path, body in CALLS:
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        await service.client.request(method, path, content=content, headers=JSON)


@pytest.mark.parametrize("trouble", ["none", "engine", "storage", "bug"])
async def test_nothing_private_is_logged_or_counted(
    trouble: str, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    engine, histories = FakeEngine(checkpoint), TroubledHistory()
    histories.failing = trouble == "storage"
    parts = Parts(engine=engine, item_log=MemoryItemLog(), histories=histories)
    async with running(checkpoint, parts, allow_volatile=True) as service:
        if trouble == "engine":
            engine.failure = EngineError("the engine is gone")
        if trouble == "bug":
            monkeypatch.setattr("service.recommend.Recommender._history", lambda *_: 1 / 0)
        with capture_logs([structlog.contextvars.merge_contextvars, structlog.processors.format_exc_info]) as lines:
            await call_everything(service)
        metrics = (await service.client.get("/metrics")).text
    libraries = "".join(record.getMessage() for record in caplog.records if not record.name.startswith("http"))
    told = json.dumps(lines) + libraries + metrics  # httpx and httpcore are the test's own client
    assert len([line for line in lines if line["event"] == "request"]) == len(CALLS)
    assert PRIVATE not in told, [line for line in lines if PRIVATE in json.dumps(line)]


async def test_every_line_of_a_request_has_its_id(checkpoint: Checkpoint) -> None:
    engine = FakeEngine(checkpoint)
    parts = Parts(engine=engine, item_log=MemoryItemLog(), histories=MemoryHistory())
    async with running(checkpoint, parts, allow_volatile=True) as service:
        engine.failure = EngineError("the engine is gone")
        with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
            await service.client.post("/recommend", json={"history": ["item-3"]}, headers={"x-request-id": "r-9"})
    events = {line["event"]: line for line in lines if line["event"] != "canary_missed"}
    assert {"recommend_fell_back", "request"} <= set(events)
    assert {line["request_id"] for line in events.values()} == {"r-9"}
