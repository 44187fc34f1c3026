"""The documentation page works without the internet, and the committed contract is the one that is served."""

import re
from typing import Any

import orjson

from service.api.openapi_file import OPENAPI_FILE, openapi_text
from tests.service_doubles import Running


def test_the_committed_document_is_what_the_code_says() -> None:
    assert OPENAPI_FILE.read_bytes() == openapi_text(), "write it anew: python -m service.api.openapi_file"


async def test_the_served_document_is_the_committed_one(service: Running) -> None:
    served = (await service.client.get("/openapi.json")).json()
    assert served == orjson.loads(OPENAPI_FILE.read_bytes())


async def test_the_page_and_all_it_loads_come_from_here(service: Running) -> None:
    page = await service.client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) >= 3
    for address in loaded:
        assert address.startswith("/docs/assets/"), address
        answer = await service.client.get(address)
        assert answer.status_code == 200 and len(answer.content) > 500
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"https?://", page.text)


def test_the_document_names_every_canonical_path_and_how_keys_are_sent() -> None:
    document: dict[str, Any] = orjson.loads(OPENAPI_FILE.read_bytes())
    paths = document["paths"]
    for path, methods in {
        "/v1/recommend": {"post"},
        "/v1/recommend:batch": {"post"},
        "/v1/items": {"post"},
        "/v1/events": {"post"},
        "/v1/users/{user_id}/history": {"get"},
        "/v1/users/{user_id}": {"delete"},
        "/v1/model": {"get"},
        "/health/live": {"get"},
        "/health/ready": {"get"},
        "/health": {"get"},
        "/metrics": {"get"},
    }.items():
        assert methods <= set(paths[path]), path
    assert not [path for path in paths if path.startswith(("/recommend", "/items", "/events"))], "aliases are not named"
    assert set(document["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path in paths.values():
        for operation in path.values():
            assert "application/problem+json" in operation["responses"]["default"]["content"]
