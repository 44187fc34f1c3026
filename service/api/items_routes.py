"""The items routes: each handler turns a checked request into a call of the ingest and its result into JSON."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from service.api.items_schemas import ItemsBody, ItemsResponse, item_answer
from service.api.problems import JsonResponse
from service.ingest import Ingest


def items_router(ingest: Ingest) -> APIRouter:
    """POST /items."""
    router = APIRouter()

    @router.post("/items", response_model=ItemsResponse)
    async def items(body: ItemsBody, dry_run: Annotated[bool, Query()] = False) -> Response:
        posted = body if isinstance(body, list) else [body]
        results = await ingest.post([item.record() for item in posted], dry_run=dry_run)
        return JsonResponse({"items": [item_answer(result) for result in results]})

    return router
