"""The playground's page and its read-only calls: strict headers, cheap caching, clear refusals, nothing from afar."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.api.playground_routes import STATIC
from service.app import Parts
from service.errors import StorageError
from service.model.checkpoint import Checkpoint
from service.stores.base import HistoryEvent
from service.stores.memory import MemoryHistory
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import Running, running

FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
ELSEWHERE = re.compile(r"""(?:https?:)?//[\w.-]+\.\w+""")


@pytest.fixture
async def up(checkpoint: Checkpoint) -> AsyncIterator[Running]:
    async with running(checkpoint) as found:
        yield found


async def test_the_page_forbids_everything_that_is_not_its_own(up: Running) -> None:
    answer = await up.client.get("/playground")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors", "object-src")} == {"'none'"}
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(STATIC).as_posix())
async def test_each_file_is_served_once_and_then_only_confirmed(up: Running, file: Path) -> None:
    path = f"/playground/static/{file.relative_to(STATIC).as_posix()}"
    first = await up.client.get(path)
    assert first.status_code == 200 and first.content == file.read_bytes()
    assert first.headers["cache-control"] == "no-cache"
    again = await up.client.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_no_file_names_an_address_elsewhere_or_makes_markup_of_text(file: Path) -> None:
    text = file.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not ELSEWHERE.search(text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|localStorage", text)


@pytest.mark.parametrize(
    "name", ["nothing.js", "../playground_routes.py", "%2e%2e/routes.py", "scripts", "/etc/passwd"]
)
async def test_what_is_no_file_of_the_page_is_a_problem_document(up: Running, name: str) -> None:
    answer = await up.client.get(f"/playground/static/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_slash_too_many_leads_to_the_page(up: Running) -> None:
    answer = await up.client.get("/playground/", follow_redirects=True)
    assert answer.status_code == 200 and answer.url.path == "/playground"


async def test_the_tree_is_read_level_by_level_and_page_by_page(up: Running, checkpoint: Checkpoint) -> None:
    sids = [tuple(codes) for codes in checkpoint.catalog_tensors().codes_NL.tolist()]
    root = (await up.client.get("/v1/catalog/tree")).json()
    assert root["items"] == len(sids) and root["next"] is None
    assert {child["code"]: child["items"] for child in root["children"]} == {
        code: sum(sid[0] == code for sid in sids) for code in {sid[0] for sid in sids}
    }
    first = (await up.client.get("/v1/catalog/tree", params={"limit": 1})).json()
    rest = (await up.client.get("/v1/catalog/tree", params={"after": first["next"]})).json()
    assert first["children"] + rest["children"] == root["children"]
    a, b, c = sids[0]
    (leaf,) = (
        child
        for child in (await up.client.get("/v1/catalog/tree", params={"prefix": f"{a},{b}"})).json()["children"]
        if child["code"] == c
    )
    assert leaf["members"] == [{"item_id": "item-0", "title": "Title 0", "is_new": False}]


async def test_the_tree_marks_what_is_newer_than_the_model(up: Running) -> None:
    posted = await up.item(item_id="new", title="like Title 7")
    a, b, _ = posted["semantic_id"]
    found = (await up.client.get("/v1/catalog/tree", params={"prefix": f"{a},{b}"})).json()
    assert sum(child["new_items"] for child in found["children"]) == 1


@pytest.mark.parametrize(
    "query", ["prefix=a", "prefix=1,", "prefix=-1", "limit=0", "limit=1001", "after=x", "prefix=" + "1," * 8 + "1"]
)
async def test_a_bad_question_to_the_tree_is_refused_by_name(up: Running, query: str) -> None:
    answer = await up.client.get(f"/v1/catalog/tree?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "?" + query.partition("=")[0]


async def test_the_fields_are_those_that_filters_may_name(up: Running) -> None:
    await up.item(item_id="new", title="like Title 7", attributes={"genres": ["Drama"], "year": 2001})
    found = {field["name"]: field for field in (await up.client.get("/v1/catalog/fields")).json()["fields"]}
    assert found["year"] == {"name": "year", "numeric": True, "values": []}
    assert found["genres"] == {"name": "genres", "numeric": False, "values": ["Drama"]}


async def test_sample_users_have_histories(checkpoint: Checkpoint) -> None:
    histories = MemoryHistory()
    await histories.append([(user, HistoryEvent(f"item-{n}", n)) for user in ("a", "b", "c") for n in range(2)])
    async with running(checkpoint, Parts(item_log=MemoryItemLog(), histories=histories), allow_volatile=True) as up:
        found = (await up.client.get("/v1/users:sample", params={"limit": 2})).json()["users"]
    assert len(found) == 2 and all(user["items"] == 2 and user["user_id"] in "abc" for user in found)


async def test_storage_in_trouble_is_said_when_users_are_asked_for(checkpoint: Checkpoint) -> None:
    class Down(MemoryHistory):
        async def sample(self, limit: int) -> list[tuple[str, int]]:
            raise StorageError("sample users: refused")

    async with running(checkpoint, Parts(item_log=MemoryItemLog(), histories=Down()), allow_volatile=True) as up:
        answer = await up.client.get("/v1/users:sample")
    assert answer.status_code == 503 and answer.json()["type"] == "urn:groundrec:problem:storage-unavailable"
