"""Whatever the document allows, and whatever it does not: never a 5xx, never a large answer to nonsense.

schemathesis makes requests from the committed OpenAPI document, valid and broken ones.
"""

import asyncio
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.schemas import OpenApiSchema

from service.api.openapi_file import OPENAPI_FILE
from service.model.checkpoint import Checkpoint
from tests.service_doubles import running

MAX_REFUSAL_BYTES = 4096

schema: OpenApiSchema = schemathesis.openapi.from_path(OPENAPI_FILE)
schema.config.generation.update(modes=list(GenerationMode))


@pytest.fixture(scope="module")
def answer(checkpoint_of_module: Checkpoint) -> Any:
    """Send a request to one service, kept running on a loop of its own."""
    loop = asyncio.new_event_loop()
    service = running(checkpoint_of_module)
    started = loop.run_until_complete(service.__aenter__())

    def send(**request: Any) -> httpx.Response:
        return loop.run_until_complete(started.client.request(**request))

    yield send
    loop.run_until_complete(service.__aexit__(None, None, None))
    loop.close()


@pytest.fixture(scope="module")
def checkpoint_of_module(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_answers_in_its_own_words(case: Any, answer: Any) -> None:
    sent = case.as_transport_kwargs(base_url="http://groundrec")
    request = {name: sent[name] for name in ("method", "url", "headers", "params") if name in sent}
    body = {name: sent[name] for name in ("json", "data") if sent.get(name) is not None}
    if "data" in body:
        body = {"content": body["data"]}
    response = answer(**request, **body)
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        assert len(response.content) <= MAX_REFUSAL_BYTES
        assert response.json()["status"] == response.status_code
