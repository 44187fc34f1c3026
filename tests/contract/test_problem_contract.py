"""Whatever comes in, a refusal is one small problem document: never a 5xx, never an echo of the input."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.model.checkpoint import Checkpoint
from tests.service_doubles import Running, running

HUGE = "x" * 5000
JSON = {"content-type": "application/json"}
HOSTILE: dict[str, tuple[str, bytes, int]] = {
    "nothing": ("/recommend", b"", 422),
    "no JSON": ("/recommend", b"{", 400),
    "not UTF-8": ("/recommend", b'{"user_id": "\xff\xfe"}', 400),
    "a list": ("/recommend", b"[]", 422),
    "a string": ("/recommend", b'"hello"', 422),
    "null": ("/recommend", b"null", 422),
    "NaN": ("/recommend", b'{"history": [{"item_id": "a", "timestamp": NaN}]}', 422),
    "infinity": ("/items", b'{"item_id": "a", "title": "b", "attributes": {"x": 1e999}}', 422),
    "lone surrogate": ("/recommend", b'{"user_id": "\\ud800"}', 422),
    "lone surrogate in a key": ("/items", b'{"item_id": "a", "title": "b", "attributes": {"\\udfff": 1}}', 422),
    "unknown field": ("/recommend", b'{"user": "1"}', 422),
    "unknown field with a huge name": ("/recommend", b'{"' + HUGE.encode() + b'": 1}', 422),
    "huge user id": ("/recommend", b'{"user_id": "' + HUGE.encode() + b'"}', 422),
    "control characters": ("/recommend", b'{"user_id": "a\\u001fb"}', 422),
    "empty user id": ("/recommend", b'{"user_id": ""}', 422),
    "number as user id": ("/recommend", b'{"user_id": 1}', 422),
    "no results": ("/recommend", b'{"num_results": 0}', 422),
    "101 results": ("/recommend", b'{"num_results": 101}', 422),
    "true results": ("/recommend", b'{"num_results": true}', 422),
    "number with 5000 digits": ("/recommend", b'{"num_results": ' + b"9" * 5000 + b"}", 400),
    "1001 exclusions": ("/recommend", b'{"exclude_item_ids": [' + b",".join([b'"a"'] * 1001) + b"]}", 422),
    "10000 wrong entries": ("/recommend", b'{"history": [' + b",".join([b"7"] * 10000) + b"]}", 422),
    "deep nesting": ("/recommend", b"[" * 100_000, 400),
    "nested context": ("/recommend", b'{"context": {"a": {"b": 1}}}', 422),
    "no items": ("/items", b"[]", 422),
    "101 items": ("/items", b"[" + b",".join([b'{"item_id": "a", "title": "b"}'] * 101) + b"]", 422),
    "no title": ("/items", b'{"item_id": "a"}', 422),
    "nested attribute": ("/items", b'{"item_id": "a", "title": "b", "attributes": {"x": {"y": 1}}}', 422),
    "mixed list attribute": ("/items", b'{"item_id": "a", "title": "b", "attributes": {"x": ["y", 1]}}', 422),
    "null attribute": ("/items", b'{"item_id": "a", "title": "b", "attributes": {"x": null}}', 422),
    "wrong flag": ("/items?dry_run=perhaps", b'{"item_id": "a", "title": "b"}', 422),
}


def check_problem(document: dict[str, Any], status: int) -> None:
    assert set(document) == {"type", "title", "status", "detail", "instance", "request_id", "errors"}
    assert document["type"].startswith("urn:groundrec:problem:")
    assert document["status"] == status and document["request_id"] and document["detail"]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_gets_a_small_problem_document(service: Running, name: str) -> None:
    path, body, status = HOSTILE[name]
    answer = await service.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) <= 4096 and HUGE[:300] not in answer.text
    check_problem(answer.json(), status)


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/recommend", {"num_results": 101}, "/num_results"),
        ("/recommend", {"history": ["a", {"item_id": 3}]}, "/history/1/item_id"),
        ("/recommend", {"usr": 1}, "/usr"),
        ("/items", {"item_id": "a"}, "/title"),
        ("/items", [{"item_id": "a", "title": "b"}, {"item_id": "a"}], "/1/title"),
        ("/items", {"item_id": "a", "title": "b", "attributes": {"x/y": ["z", 1]}}, "/attributes/x~1y/1"),
    ],
)
async def test_the_pointer_names_the_field_at_fault(service: Running, path: str, body: Any, pointer: str) -> None:
    answer = await service.client.post(path, json=body)
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


async def test_a_body_that_is_not_declared_json_is_refused(service: Running) -> None:
    answer = await service.client.post("/recommend", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and "content-type: application/json" in answer.json()["detail"]
    check_problem(answer.json(), 415)


async def test_an_announced_large_body_is_refused_unread(service: Running) -> None:
    answer = await service.client.post("/recommend", content=b"x" * (2 << 20), headers=JSON)
    assert answer.status_code == 413
    check_problem(answer.json(), 413)


async def test_a_large_body_in_chunks_is_refused_while_it_comes_in(service: Running) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b"x" * (1 << 18)

    answer = await service.client.post("/items", content=chunks(), headers=JSON)
    assert answer.status_code == 413
    check_problem(answer.json(), 413)
    assert sent < 10


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/recommend", 405)])
async def test_the_routers_own_refusals_are_problems_too(service: Running, method: str, path: str, status: int) -> None:
    answer = await service.client.request(method, path)
    assert answer.status_code == status
    check_problem(answer.json(), status)


async def test_a_full_server_refuses_at_once_says_when_to_return_and_recovers(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, max_inflight=2, request_timeout_ms=5000) as service:
        service.engine.hangs = True
        held = [asyncio.create_task(service.recommend(history=["item-1"])) for _ in range(2)]
        while len(service.engine.requests) < 2:
            await asyncio.sleep(0)
        refused = await service.client.post("/recommend", json={})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        check_problem(refused.json(), 503)
        assert (await service.client.get("/health/live")).status_code == 200
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert (await service.client.post("/recommend", json={})).status_code == 200


async def test_a_bug_is_a_problem_without_its_insides(service: Running) -> None:
    service.engine.failure = ZeroDivisionError("secret detail")
    answer = await service.client.post("/recommend", json={"history": ["item-1"]})
    assert answer.status_code == 500 and "secret" not in answer.text and answer.headers["connection"] == "close"
    check_problem(answer.json(), 500)


async def test_a_request_id_is_kept_when_it_is_plain_and_replaced_when_it_is_not(service: Running) -> None:
    for given, kept in (("abc-123", True), ("a b", False), ("x" * 65, False)):
        answer = await service.client.get("/nowhere", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_a_body_that_never_ends_gives_its_place_back_in_time(service: Running) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)
        yield b"}"

    answer = await asyncio.wait_for(service.client.post("/recommend", content=trickle(), headers=JSON), 10)
    assert answer.status_code == 408
    check_problem(answer.json(), 408)


async def test_a_bug_is_counted_as_an_error_and_keeps_its_request_id(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(service.engine, "recommend", broken)
    answer = await service.client.post("/recommend", json={"history": ["item-1"]}, headers={"x-request-id": "r-1"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "r-1"
    told = (await service.client.get("/metrics")).text
    assert 'rec_requests_total{outcome="error",route="/recommend"} 1.0' in told


async def test_a_shed_request_is_counted_under_its_route(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, max_inflight=1) as service:
        service.engine.hangs = True
        body = {"history": ["item-1"], "timeout_ms": 300}
        answers = await asyncio.gather(*[service.client.post("/recommend", json=body) for _ in range(3)])
        assert sorted(answer.status_code for answer in answers) == [200, 503, 503]
        told = (await service.client.get("/metrics")).text
    assert 'rec_requests_total{outcome="unavailable",route="/recommend"} 2.0' in told
