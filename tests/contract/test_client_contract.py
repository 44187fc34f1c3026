"""The Python client against the real application, and against a service that misbehaves."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
import uvicorn

from service.api_keys import KeyEntry, digest
from service.client import AsyncRecClient, Event, HistoryEntry, Item, RecClient, Recommendation
from service.errors import (
    EngineError,
    NotAllowedError,
    ProblemError,
    RefusedError,
    ThrottledError,
    UnavailableError,
    UnreachableError,
)
from service.model.checkpoint import Checkpoint
from service.server import bind
from tests.service_doubles import Running, running

HISTORY = ["item-3", "item-4", "item-5"]


@pytest.fixture
async def client(service: Running) -> AsyncIterator[AsyncRecClient]:
    async with AsyncRecClient("http://groundrec", transport=httpx.ASGITransport(service.service.app)) as made:
        yield made


async def test_a_recommendation_is_a_typed_value(client: AsyncRecClient, service: Running) -> None:
    answer = await client.recommend(history=HISTORY, num_results=5, explain=True)
    plain = await service.recommend(history=HISTORY, num_results=5)
    assert [(item.item_id, item.score, item.rank, item.title) for item in answer.items] == [
        (item["item_id"], item["score"], item["rank"], item["title"]) for item in plain["items"]
    ]
    assert answer.model_version == plain["model_version"] and not answer.degraded
    assert answer.items[0].explanation is not None and answer.items[0].explanation.level_scores


async def test_the_loop_from_recommendation_to_event_to_history(client: AsyncRecClient) -> None:
    entries = ["item-1", HistoryEntry("item-2", 5.0, "click")]
    answer = await client.recommend(history=entries, exclude_item_ids=["item-9"], context={"page": "home"})
    clicked = answer.items[0].item_id
    report = await client.post_events(
        [Event("a/b", clicked, "click", 7.0, "e-1", answer.recommendation_id), Event("a/b", "gone", "view", 8.0)]
    )
    assert (report.recorded, report.duplicates, report.unknown_items) == (2, 0, 1)
    first, second = await client.history("a/b")
    assert (first.item_id, first.timestamp, first.event_id) == (clicked, 7.0, "e-1") and first.title
    assert second.title is None
    erased = await client.erase_user("a/b")
    assert erased.history is True and erased.feedback_entries == 2
    assert await client.history("a/b") == []


async def test_items_and_model(client: AsyncRecClient) -> None:
    (posted,) = await client.post_items([Item("new", "like Title 3", attributes={"year": 1999})])
    assert (posted.item_id, posted.result) == ("new", "created") and len(posted.semantic_id or ()) == 3
    (again,) = await client.post_items([Item("new", "like Title 3", attributes={"year": 1999})], dry_run=True)
    assert again.result == "unchanged"
    assert (await client.model())["new_items"] == 1


async def test_a_batch_has_an_answer_or_an_error_for_each(client: AsyncRecClient) -> None:
    first, second, third = await client.recommend_batch([{"history": HISTORY}, {"num_results": 0}, {"user_id": "u"}])
    assert isinstance(first, Recommendation) and isinstance(third, Recommendation)
    assert isinstance(second, ProblemError) and second.status == 422 and second.pointers == ("/num_results",)


async def test_a_wrong_request_is_refused_once_with_its_pointer(client: AsyncRecClient) -> None:
    with pytest.raises(RefusedError, match="/num_results") as refused:
        await client.recommend(num_results=101)
    assert (refused.value.status, refused.value.problem) == (422, "invalid-request")
    assert refused.value.request_id and refused.value.pointers == ("/num_results",)


async def test_keys_and_quotas_become_their_own_exceptions(checkpoint: Checkpoint) -> None:
    keys = (KeyEntry(name="a", scopes=("recommend",), sha256=(digest("key"),), requests_per_second=0.01, burst=1),)
    async with running(checkpoint, api_keys=keys) as service:
        transport = httpx.ASGITransport(service.service.app)
        async with AsyncRecClient("http://groundrec", transport=transport) as stranger:
            with pytest.raises(NotAllowedError, match="401 unauthorized"):
                await stranger.model()
        async with AsyncRecClient("http://groundrec", api_key="key", transport=transport) as client:
            with pytest.raises(NotAllowedError, match="403 forbidden"):
                await client.history("u")
            await client.recommend()
            with pytest.raises(ThrottledError) as refused:
                await client.recommend()
            assert refused.value.retry_after_seconds is not None and refused.value.retry_after_seconds > 5


async def test_the_blocking_client_speaks_to_a_real_port(service: Running) -> None:
    async with served(service) as url:
        answer = await asyncio.to_thread(ask, url)
    assert len(answer.items) == 3


def ask(url: str) -> Recommendation:
    with RecClient(url) as client:
        report = client.post_events([Event("u", "item-3", "click", event_id="e-1")])
        assert report.recorded == 1 and [event.item_id for event in client.history("u")] == ["item-3"]
        assert client.post_items([Item("x", "y")])[0].result == "created"
        assert client.model()["levels"] == 3
        assert len(client.recommend_batch([{}, {}])) == 2
        with pytest.raises(RefusedError):
            client.recommend(num_results=0)
        assert client.erase_user("u").history is True
        return client.recommend(history=HISTORY, num_results=3)


@asynccontextmanager
async def served(service: Running) -> AsyncIterator[str]:
    with bind("127.0.0.1", 0) as listener:
        config = uvicorn.Config(service.service.app, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        running_server = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running_server


Answering = Callable[[int], httpx.Response]


@contextmanager
def client_of(answering: Answering, **options: float) -> Iterator[tuple[RecClient, list[httpx.Request]]]:
    """A client whose n-th request, from 0, is answered by ``answering(n)``."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answering(len(seen) - 1)

    client = RecClient("http://groundrec", transport=httpx.MockTransport(handle), **options)  # type: ignore[arg-type]
    with client:
        yield client, seen


def refusal(problem: str, status: int = 503, retry_after: str | None = None) -> httpx.Response:
    document = {"type": f"urn:groundrec:problem:{problem}", "detail": "no", "request_id": "r", "errors": []}
    headers = {"retry-after": retry_after} if retry_after else {}
    return httpx.Response(status, json=document, headers=headers)


REPORT = httpx.Response(200, json={"recorded": 1, "duplicates": 0, "feedback_only": 0, "unknown_items": 0})


def test_a_full_server_is_asked_again_and_told_nothing_twice() -> None:
    with client_of(lambda n: REPORT if n == 2 else refusal("overloaded")) as (client, seen):
        assert client.post_events([Event("u", "i", "click")]).recorded == 1
    assert len(seen) == 3


def test_events_without_ids_are_not_repeated_when_they_may_have_been_written() -> None:
    with client_of(lambda n: refusal("storage-unavailable")) as (client, seen):
        with pytest.raises(UnavailableError, match="503 storage-unavailable"):
            client.post_events([Event("u", "i", "click", event_id="e"), Event("u", "i", "click")])
        assert len(seen) == 1
        with pytest.raises(UnavailableError):
            client.post_events([Event("u", "i", "click", event_id="e")])
        assert len(seen) == 1 + 3


def broken(number: int) -> httpx.Response:
    raise httpx.ReadError("reset")


def test_a_broken_connection_is_unreachable_and_repeated_only_where_that_is_safe() -> None:
    with client_of(broken) as (client, seen):
        with pytest.raises(UnreachableError, match="reset"):
            client.post_events([Event("u", "i", "click")])
        assert len(seen) == 1
        with pytest.raises(UnreachableError):
            client.recommend()
        assert len(seen) == 1 + 3


def test_retry_after_is_honoured() -> None:
    answer = httpx.Response(200, json={"model_version": "m"})
    start = time.monotonic()
    with client_of(lambda n: answer if n else refusal("overloaded", retry_after="1")) as (client, seen):
        assert client.model() == {"model_version": "m"}
    assert len(seen) == 2 and time.monotonic() - start >= 1


def test_a_pause_that_would_miss_the_deadline_is_not_begun() -> None:
    start = time.monotonic()
    with (
        client_of(lambda n: refusal("overloaded", retry_after="30"), timeout_seconds=5.0) as (client, seen),
        pytest.raises(UnavailableError) as refused,
    ):
        client.model()
    assert len(seen) == 1 and time.monotonic() - start < 4
    assert refused.value.retry_after_seconds == 30


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_what_is_wrong_is_not_repeated(status: int) -> None:
    with (
        client_of(lambda n: httpx.Response(status, text="<html>not ours</html>")) as (client, seen),
        pytest.raises(ProblemError) as refused,
    ):
        client.recommend()
    assert len(seen) == 1 and refused.value.status == status


def test_an_answer_of_somebody_else_is_named_as_such() -> None:
    with client_of(lambda n: httpx.Response(200, json={"hello": "world"})) as (client, _):
        with pytest.raises(ProblemError, match="not an answer of this service"):
            client.erase_user("u")
        with pytest.raises(ProblemError, match="not an answer of this service"):
            client.recommend()


async def test_a_hung_service_is_given_up_at_the_deadline(service: Running) -> None:
    service.engine.hangs = True
    transport = httpx.ASGITransport(service.service.app)
    async with AsyncRecClient("http://groundrec", transport=transport, timeout_seconds=0.2) as client:
        with pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"):
            await client.recommend(history=HISTORY)


async def test_what_the_service_itself_survives_is_no_exception(client: AsyncRecClient, service: Running) -> None:
    service.engine.failure = EngineError("dead")
    assert (await client.recommend(history=HISTORY)).degraded_reasons == ("engine_unavailable",)
