"""POST /events, and what is stored of a user: shown and erased."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from service.api.events_schemas import ErasedResponse, EventsBody, EventsResponse, HistoryResponse
from service.api.fields import Name
from service.api.problems import JsonResponse
from service.api.quota import charge
from service.catalog import Catalog
from service.events import Events
from service.histories import Histories
from service.lane import CurrentCatalog
from service.stores.base import HistoryEvent

UserId = Annotated[Name, Path()]


def events_router(events: Events) -> APIRouter:
    """POST /events."""
    router = APIRouter(tags=["events"])

    @router.post("/events", response_model=EventsResponse, summary="What users did: one event or up to 1,000")
    async def post_events(body: EventsBody, request: Request) -> Response:
        many = isinstance(body, list)
        posted = body if isinstance(body, list) else [body]
        charge(request.scope, len(posted) - 1)
        return JsonResponse(await events.post([event.posted() for event in posted], many=many))

    return router


def users_router(events: Events, histories: Histories, catalogs: CurrentCatalog) -> APIRouter:
    """What is stored of one user. Ids may hold slashes, so they are whole paths."""
    router = APIRouter(tags=["users"])

    @router.get("/users/{user_id:path}/history", response_model=HistoryResponse, summary="A stored history")
    async def history(user_id: UserId, limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> Response:
        stored = await histories.events(user_id, limit)
        catalog = catalogs.current
        return JsonResponse({"user_id": user_id, "events": [_shown(event, catalog) for event in stored]})

    @router.delete("/users/{user_id:path}", response_model=ErasedResponse, summary="Forget a user, feedback included")
    async def erase(user_id: UserId) -> Response:
        return JsonResponse(await events.erase(user_id))

    return router


def _shown(event: HistoryEvent, catalog: Catalog) -> dict[str, Any]:
    shown: dict[str, Any] = {"item_id": event.item_id, "timestamp": event.timestamp}
    if event.event_id is not None:
        shown["event_id"] = event.event_id
    if item := catalog.get(event.item_id):
        shown |= {"title": item.item.title, "semantic_id": item.sid}
    return shown
