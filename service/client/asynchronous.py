"""The client for asyncio. It holds a connection pool; close it, or use it as a context manager."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import httpx

from service.client import calls
from service.client.calls import Call, Event, Item
from service.client.results import (
    CodesOfModel,
    Erased,
    EventsReport,
    HistoryEvent,
    PostedItem,
    Recommendation,
    ServedModel,
)
from service.client.retries import Outcome, of_failure, of_response, pause
from service.errors import ProblemError, UnreachableError

Answer = TypeVar("Answer")


class AsyncRecClient:
    """Calls the service; every method raises `ClientError`s."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 5.0,
        retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``timeout_seconds`` covers a call with its repeats; ``transport`` is for tests."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, transport=transport)
        self._timeout_seconds, self._retries = timeout_seconds, retries

    async def recommend(self, **query: Any) -> Recommendation:
        """POST /recommend; the arguments are those of `calls.recommend_body`."""
        return await self._call(calls.recommend(calls.recommend_body(**query)))

    async def recommend_batch(self, queries: Sequence[Mapping[str, Any]]) -> list[Recommendation | ProblemError]:
        """POST /recommend:batch; an answer or an error for each query, in order."""
        return await self._call(calls.recommend_batch([calls.recommend_body(**query) for query in queries]))

    async def post_items(self, items: Sequence[Item], *, dry_run: bool = False) -> list[PostedItem]:
        """POST /items."""
        return await self._call(calls.post_items(items, dry_run=dry_run))

    async def delete_item(self, item_id: str) -> Mapping[str, Any]:
        """DELETE /items/{id}."""
        return await self._call(calls.delete_item(item_id))

    async def post_events(self, events: Sequence[Event]) -> EventsReport:
        """POST /events; repeated after a failure only if every event has an ``event_id``."""
        return await self._call(calls.post_events(events))

    async def history(self, user_id: str, limit: int = 200) -> list[HistoryEvent]:
        """GET /users/{id}/history, oldest first."""
        return await self._call(calls.history(user_id, limit))

    async def erase_user(self, user_id: str) -> Erased:
        """DELETE /users/{id}."""
        return await self._call(calls.erase_user(user_id))

    async def model(self) -> Mapping[str, Any]:
        """GET /model."""
        return await self._call(calls.model())

    async def models(self) -> list[ServedModel]:
        """GET /models: the models of the replica that answers."""
        return await self._call(calls.models())

    async def open_model(
        self, checkpoint: str, *, share: float = 0.0, shadow: bool = False, replace: bool = False
    ) -> ServedModel:
        """POST /models: begin to open a checkpoint; `models` says when it is ready."""
        return await self._call(calls.open_model(checkpoint, share=share, shadow=shadow, replace=replace))

    async def change_model(
        self, model_version: str, *, share: float | None = None, shadow: bool | None = None
    ) -> ServedModel:
        """PATCH /models/{model_version}."""
        return await self._call(calls.change_model(model_version, share=share, shadow=shadow))

    async def close_model(self, model_version: str) -> ServedModel:
        """DELETE /models/{model_version}: it answers what it has begun."""
        return await self._call(calls.close_model(model_version))

    async def open_codes(self, *, dry_run: bool = False) -> list[CodesOfModel]:
        """POST /catalog/codes: open spare codes for kinds of posted items that the codebooks do not know."""
        return await self._call(calls.open_codes(dry_run=dry_run))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _call(self, call: Call[Answer]) -> Answer:
        deadline, attempt = time.monotonic() + self._timeout_seconds, 0
        while True:
            outcome = await self._try(call, deadline - time.monotonic())
            if outcome.error is None:
                answer: Answer = outcome.answer
                return answer
            wait = pause(call, outcome, attempt, deadline - time.monotonic())
            if wait is None or attempt == self._retries:
                raise outcome.error
            await asyncio.sleep(wait)
            attempt += 1

    async def _try(self, call: Call[Any], left: float) -> Outcome:
        try:
            async with asyncio.timeout(left):
                response = await self._http.request(
                    call.method, call.path, json=call.body, params=dict(call.query), timeout=left
                )
        except TimeoutError:
            return Outcome(error=UnreachableError(f"no answer within {self._timeout_seconds:g} s"))
        except httpx.TransportError as error:
            return of_failure(error)
        return of_response(call, response)
