"""Traces: one span per request and one per part of it, joined to the caller's trace, with nobody's data in them."""

import asyncio
import sys
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, NoReturn

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.engine.base import BeamAnswer, BeamRequest, EngineCost
from service.errors import EngineError, SettingsError
from service.lane_assembly import Parts
from service.model.checkpoint import Checkpoint
from service.otel_tracing import OtelTracing
from service.settings import Settings
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from service.trace_opening import check_tracing, open_tracing
from service.tracing import NoTracing
from tests.service_doubles import FakeEngine, Running, running

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JSON = {"content-type": "application/json"}
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
HISTORY, ITEM = ["item-3", "item-4"], "item-5"


class TellingEngine(FakeEngine):
    """Says where its time went, as vLLM's process does."""

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        found = await super().recommend(request_id, request)
        return BeamAnswer(found.sids, found.scores, found.level_scores, cost=EngineCost(0.001, 0.002, 0.003, 32))


class Traced:
    """A service and the spans it has ended."""

    def __init__(self, service: Running, engine: FakeEngine, exporter: InMemorySpanExporter) -> None:
        self.service, self.engine, self._exporter = service, engine, exporter

    @property
    def text(self) -> str:
        """All that was told, as an exporter sees it."""
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())

    def spans(self) -> dict[str, ReadableSpan]:
        found = self._exporter.get_finished_spans()
        named = {span.name: span for span in found}
        assert len(named) == len(found), [span.name for span in found]
        return named

    async def history_of(self, user_id: str) -> None:
        await self.service.post("/events", {"user_id": user_id, "item_id": ITEM, "event": "click"})
        self._exporter.clear()


@pytest.fixture
async def traced(checkpoint: Checkpoint) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = TellingEngine(checkpoint)
    parts = Parts(
        engine=engine,
        item_log=MemoryItemLog(),
        histories=MemoryHistory(),
        tracing=OtelTracing(provider),
    )
    async with running(checkpoint, parts, allow_volatile=True) as service:
        yield Traced(service, engine, exporter)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None, span.name
    return int(span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_is_a_tree_from_http_over_history_and_queue_to_the_engine(traced: Traced) -> None:
    await traced.history_of("u-1")
    await traced.service.recommend(user_id="u-1", num_results=3)
    spans = traced.spans()
    assert set(spans) == {"POST /recommend", "history", "recommend", "engine", "queue"}
    request = spans["POST /recommend"]
    assert request.parent is None
    assert parent_of(spans["history"]) == parent_of(spans["recommend"]) == id_of(request)
    assert parent_of(spans["engine"]) == id_of(spans["recommend"])
    assert parent_of(spans["queue"]) == id_of(spans["engine"])
    assert len({trace_of(span) for span in spans.values()}) == 1


async def test_spans_say_what_was_done_and_where_the_engines_time_went(traced: Traced) -> None:
    await traced.history_of("u-1")
    answer = await traced.service.recommend(user_id="u-1", num_results=3)
    spans = traced.spans()
    assert attributes(spans["history"]) == {"groundrec.users": 1, "groundrec.items": 1}
    engine = attributes(spans["engine"])
    assert engine["groundrec.model_version"] == answer["model_version"]
    assert engine["groundrec.catalog_version"] == answer["catalog_version"]
    assert (engine["groundrec.wait_ms"], engine["groundrec.prefill_ms"], engine["groundrec.decode_ms"]) == (1, 2, 3)
    assert engine["groundrec.cached_tokens"] == 32 and engine["groundrec.prompt_tokens"] > 0
    assert attributes(spans["recommend"])["groundrec.results"] == 3
    request = attributes(spans["POST /recommend"])
    assert (request["http.request.method"], request["http.route"]) == ("POST", "/recommend")
    assert request["http.response.status_code"] == 200


async def test_a_callers_trace_is_continued_and_the_request_id_is_on_the_span(traced: Traced) -> None:
    headers = {"traceparent": TRACEPARENT, "x-request-id": "r-7"}
    answer = await traced.service.client.post("/recommend", json={"history": HISTORY}, headers=headers)
    assert answer.headers["x-request-id"] == "r-7"
    span = traced.spans()["POST /recommend"]
    assert trace_of(span) == TRACE and f"{parent_of(span):016x}" == CALLER
    assert attributes(span)["groundrec.request_id"] == "r-7"


@pytest.mark.parametrize("given", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "99-" + "é" * 9])
async def test_a_malformed_traceparent_begins_a_trace_of_its_own(traced: Traced, given: str) -> None:
    headers = [(b"traceparent", given.encode("latin-1")), (b"content-type", b"application/json")]
    await traced.service.client.post("/recommend", json={"history": HISTORY}, headers=headers)
    assert traced.spans()["POST /recommend"].parent is None


async def test_a_caller_that_does_not_sample_is_followed(traced: Traced) -> None:
    headers = {"traceparent": TRACEPARENT[:-2] + "00"}
    await traced.service.client.post("/recommend", json={"history": HISTORY}, headers=headers)
    assert not traced.spans()


async def test_posted_items_are_traced_from_grounding_to_visibility(traced: Traced) -> None:
    await traced.service.item(item_id="new", title="like Title 7")
    spans = traced.spans()
    assert set(spans) == {"POST /items", "grounding", "item_log", "item_visible"}
    assert {parent_of(span) for name, span in spans.items() if name != "POST /items"} == {id_of(spans["POST /items"])}


async def test_probes_and_background_work_make_no_traces(traced: Traced) -> None:
    for path in ("/health/live", "/health/ready", "/health", "/metrics", "/v1/metrics"):
        await traced.service.client.get(path)
    assert not traced.spans()


async def test_no_user_item_or_text_is_in_a_trace_even_when_something_fails(traced: Traced) -> None:
    await traced.history_of("secret-user")
    traced.engine.failure = EngineError("secret-fault")
    await traced.service.recommend(user_id="secret-user", exclude_item_ids=["secret-item"])
    await traced.service.client.get("/v1/users/secret-user/history")
    await traced.service.client.post("/recommend?secret-query=1", content=b'{"secret-body', headers=JSON)
    await traced.service.client.post(
        "/recommend", json={"history": HISTORY, "filter": {"include": {"secret-field": ["x"]}}}
    )
    await traced.service.item(item_id="secret-item", title="secret-title")
    assert "POST /recommend" in traced.text and "secret" not in traced.text


async def test_a_fault_leaves_its_type_and_nothing_else(traced: Traced) -> None:
    engine = traced.engine
    engine.failure = EngineError("down")
    await traced.service.recommend(history=HISTORY)
    span = traced.spans()["engine"]
    assert attributes(span)["error.type"] == "EngineError" and not span.events
    assert not span.status.is_ok and span.status.description is None
    assert attributes(traced.spans()["recommend"])["groundrec.degraded"] == "engine_unavailable"
    assert traced.spans()["POST /recommend"].status.is_unset


async def test_a_server_error_marks_the_requests_span(traced: Traced) -> None:
    traced.service.service.health.drain()
    answer = await traced.service.client.post("/items", content=b"[", headers=JSON)
    assert answer.status_code == 400 and traced.spans()["POST /items"].status.is_unset


async def test_a_client_that_hangs_up_is_no_error(traced: Traced) -> None:
    engine = traced.engine
    engine.hangs = True
    call = asyncio.ensure_future(traced.service.recommend(history=HISTORY))
    while not engine.requests:
        await asyncio.sleep(0.001)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    span = traced.spans()["engine"]
    assert attributes(span)["error.type"] == "CancelledError" and span.status.is_unset


async def test_the_log_line_of_a_request_names_its_trace(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []

    def keep(_: Any, __: str, line: MutableMapping[str, Any]) -> NoReturn:
        lines.append(dict(line))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        await traced.service.client.post("/recommend", json={"history": HISTORY}, headers={"traceparent": TRACEPARENT})
    finally:
        structlog.reset_defaults()
    assert [line["trace_id"] for line in lines if line["event"] == "request"] == [TRACE]


async def test_off_means_that_no_span_is_made(checkpoint: Checkpoint) -> None:
    async with open_tracing(Settings.model_validate({"checkpoint": checkpoint.folder})) as tracing:
        assert isinstance(tracing, NoTracing)
        assert tracing.request({}) is tracing.span("history")


async def test_a_missing_extra_is_one_clear_error(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.otel_tracing", None)
    settings = Settings.model_validate({"checkpoint": checkpoint.folder, "traces": True})
    with pytest.raises(SettingsError, match=r"traces is true .* pip install 'groundrec\[otel\]'"):
        check_tracing(settings)
    with pytest.raises(SettingsError, match="not installed"):
        async with open_tracing(settings):
            pass
