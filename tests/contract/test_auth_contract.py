"""Keys, scopes and quotas: closed by default, proven over every route there is."""

import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount

from service.access import open_keys
from service.api.auth import OPEN_PATHS
from service.api_keys import KeyEntry, digest
from service.errors import SettingsError
from service.model.checkpoint import Checkpoint
from service.settings import Settings
from tests.service_doubles import Running, running

KEYS = {name: f"groundrec_{name}-key" for name in ("shop", "feed", "editor", "boss", "hasty")}
CLIENTS = (
    KeyEntry(name="shop", scopes=("recommend",), sha256=(digest(KEYS["shop"]),)),
    KeyEntry(name="feed", scopes=("events",), sha256=(digest("old"), digest(KEYS["feed"]))),
    KeyEntry(name="editor", scopes=("items",), sha256=(digest(KEYS["editor"]),)),
    KeyEntry(name="boss", scopes=("admin",), sha256=(digest(KEYS["boss"]),)),
    KeyEntry(
        name="hasty", scopes=("recommend", "events"), sha256=(digest(KEYS["hasty"]),), requests_per_second=0.1, burst=4
    ),
)
ALLOWED_WITHOUT_KEY = {"/health/live", "/health/ready", "/health", "/metrics"}
PAGE_WITHOUT_DATA = ("/playground", "/playground/")


@pytest.fixture
async def guarded(checkpoint: Checkpoint) -> AsyncIterator[Running]:
    async with running(checkpoint, api_keys=CLIENTS) as started:
        yield started


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def routes_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/anything"
        else:
            assert isinstance(route, APIRoute), route
            yield from ((method, route.path) for method in route.methods)


def test_four_paths_are_open_and_no_more_but_the_playgrounds_own_files() -> None:
    assert OPEN_PATHS == ALLOWED_WITHOUT_KEY


async def test_every_route_but_four_refuses_without_a_key_and_with_a_wrong_one(guarded: Running) -> None:
    found = list(routes_of(guarded.service.app.routes))
    assert len(found) > 20 and ("POST", "/v1/recommend") in found and ("DELETE", "/users/{user_id:path}") in found
    for method, path in found:
        shown = path.replace("{user_id:path}", "u").replace("{name:path}", "a").replace("{item_id:path}", "i")
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            answer = await guarded.client.request(method, shown, headers=headers, content=b"{")
            if path in ALLOWED_WITHOUT_KEY or path.startswith(PAGE_WITHOUT_DATA):
                assert answer.status_code not in (401, 403), path
            else:
                assert answer.status_code == 401, (method, path)
                assert "www-authenticate" in answer.headers
                assert answer.json()["type"] == "urn:groundrec:problem:unauthorized"


async def test_unknown_paths_are_closed_too(guarded: Running) -> None:
    for path in ("/nowhere", "/v1", "/v1/nowhere", "//recommend", "/health/", "/metrics/x", "/"):
        assert (await guarded.client.get(path)).status_code == 401, path


@pytest.mark.parametrize(
    ("method", "path", "body", "scope"),
    [
        ("POST", "/recommend", {}, "recommend"),
        ("POST", "/v1/recommend:batch", {"requests": [{}]}, "recommend"),
        ("GET", "/model", None, "recommend"),
        ("POST", "/events", {"user_id": "u", "item_id": "i", "event": "click"}, "events"),
        ("GET", "/users/u/history", None, "events"),
        ("POST", "/items", {"item_id": "i", "title": "t"}, "items"),
        ("DELETE", "/users/u", None, "admin"),
    ],
)
async def test_a_key_does_what_its_scopes_say_and_admin_does_all(
    guarded: Running, method: str, path: str, body: Any, scope: str
) -> None:
    holder = {"recommend": "shop", "events": "feed", "items": "editor", "admin": "boss"}
    for name in ("shop", "feed", "editor", "boss"):
        answer = await guarded.client.request(method, path, json=body, headers=bearer(name))
        if name in (holder[scope], "boss"):
            assert answer.status_code == 200, (name, answer.text)
        else:
            assert answer.status_code == 403 and f"`{scope}`" in answer.json()["detail"]


async def test_only_admin_may_open_codes(guarded: Running) -> None:
    for name in ("shop", "feed", "editor"):
        refused = await guarded.client.post("/v1/catalog/codes", json={"dry_run": True}, headers=bearer(name))
        assert refused.status_code == 403 and "`admin`" in refused.json()["detail"], name
    admitted = await guarded.client.post("/v1/catalog/codes", json={"dry_run": True}, headers=bearer("boss"))
    assert admitted.status_code == 409 and "sids.spare_codes" in admitted.json()["detail"]


async def test_a_key_comes_in_three_ways(guarded: Running) -> None:
    basic = base64.b64encode(f"anybody:{KEYS['shop']}".encode()).decode()
    for headers in ({"x-api-key": KEYS["shop"]}, bearer("shop"), {"authorization": f"Basic {basic}"}):
        assert (await guarded.client.get("/model", headers=headers)).status_code == 200
    for junk in ("Basic ???", "Basic", "Bearer", "Digest a", "Bearer  "):
        assert (await guarded.client.get("/model", headers={"authorization": junk})).status_code == 401


async def test_a_browser_is_asked_for_the_key_where_it_opens_a_page(guarded: Running) -> None:
    assert (await guarded.client.get("/docs")).headers["www-authenticate"].startswith("Basic ")
    assert (await guarded.client.get("/model")).headers["www-authenticate"].startswith("Bearer ")
    assert (await guarded.client.get("/docs", headers=bearer("feed"))).status_code == 200


async def test_two_keys_of_a_client_work_while_it_changes_over(guarded: Running) -> None:
    for key in ("old", KEYS["feed"]):
        answer = await guarded.client.get("/users/u/history", headers={"x-api-key": key})
        assert answer.status_code == 200


async def test_a_quota_is_429_with_the_time_to_wait_and_is_nobody_elses(guarded: Running) -> None:
    answers = [await guarded.client.post("/recommend", json={}, headers=bearer("hasty")) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429]
    refused = answers[-1]
    assert 1 <= int(refused.headers["retry-after"]) <= 10
    assert refused.json()["type"] == "urn:groundrec:problem:quota-exceeded"
    assert (await guarded.client.post("/recommend", json={}, headers=bearer("shop"))).status_code == 200
    assert 'rec_shed_total{reason="quota"} 1.0' in (await guarded.client.get("/metrics")).text


async def test_a_batch_costs_as_much_as_its_entries(guarded: Running) -> None:
    whole = await guarded.client.post("/recommend:batch", json={"requests": [{}] * 20}, headers=bearer("hasty"))
    assert whole.status_code == 200
    refused = await guarded.client.post("/recommend", json={}, headers=bearer("hasty"))
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 100


async def test_a_key_is_never_shown(guarded: Running) -> None:
    for path in ("/model", "/nowhere", "/recommend"):
        answer = await guarded.client.get(path, headers=bearer("boss"))
        assert KEYS["boss"] not in answer.text and digest(KEYS["boss"]) not in answer.text


def settings(**fields: Any) -> Settings:
    return Settings(checkpoint=Path("x"), **fields)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_on_loopback_keys_are_not_needed(host: str) -> None:
    assert open_keys(settings(host=host)) is None
    assert open_keys(settings(host=host, api_keys=CLIENTS)) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "shop.example"])
def test_beyond_loopback_a_service_without_keys_does_not_start(host: str) -> None:
    with pytest.raises(SettingsError, match=r"groundrec keys create .* --auth off"):
        open_keys(settings(host=host))
    assert open_keys(settings(host=host, auth="off")) is None
    assert open_keys(settings(host=host, api_keys=CLIENTS)) is not None


def test_keys_that_are_wanted_and_missing_are_an_error_on_loopback_too() -> None:
    with pytest.raises(SettingsError, match="--auth on: there are no API keys"):
        open_keys(settings(auth="on"))
