"""The items routes: each handler turns a checked request into a call of the ingest or a look into the catalogue.

Ids may hold slashes, so they are whole paths. Cursors are opaque: what is in them may change with the program.
"""

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from service.api.fields import Name
from service.api.items_schemas import (
    DeletedResponse,
    ItemsBody,
    ItemsPage,
    ItemsResponse,
    StoredItem,
    item_answer,
    stored_item,
)
from service.api.problems import JsonResponse
from service.api.quota import charge
from service.errors import InvalidRequestError, UnknownItemError
from service.ingest_all import IngestAll
from service.lane import CurrentCatalog

ItemId = Annotated[Name, Path()]
Cursor = Annotated[str | None, Query(max_length=100, description="where the last page ended")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Title = Annotated[str, Query(max_length=200, description="only items whose title holds this, whatever its case")]


def items_router(ingest: IngestAll, catalogs: CurrentCatalog) -> APIRouter:
    """All of /items."""
    router = APIRouter(tags=["items"])

    @router.post("/items", response_model=ItemsResponse, summary="New or changed items: one or up to 100")
    async def post_items(body: ItemsBody, request: Request, dry_run: Annotated[bool, Query()] = False) -> Response:
        posted = body if isinstance(body, list) else [body]
        charge(request.scope, len(posted) - 1)
        results = await ingest.post([item.record() for item in posted], dry_run=dry_run)
        return JsonResponse({"items": [item_answer(result) for result in results]})

    @router.get("/items", response_model=ItemsPage, summary="The catalogue, page by page")
    async def list_items(cursor: Cursor = None, limit: Limit = 100, q: Title = "") -> Response:
        catalog = catalogs.current
        page = catalog.page(_read_cursor(cursor), limit, q)
        items = [stored_item(catalog, item) for item in page.items]
        answer = {"items": items, "next_cursor": _cursor(page.cursor), "catalog_version": catalog.version}
        return JsonResponse(answer)

    @router.get("/items/{item_id:path}", response_model=StoredItem, summary="One item")
    async def get_item(item_id: ItemId) -> Response:
        catalog = catalogs.current
        item = catalog.get(item_id)
        if item is None:
            raise UnknownItemError("there is no item of this id")
        return JsonResponse(stored_item(catalog, item) | {"catalog_version": catalog.version})

    @router.delete("/items/{item_id:path}", response_model=DeletedResponse, summary="Take an item out of all answers")
    async def delete_item(item_id: ItemId) -> Response:
        if not await ingest.delete(item_id):
            raise UnknownItemError("there is no item of this id, or it is deleted already")
        return JsonResponse({"item_id": item_id, "result": "deleted"})

    return router


def _cursor(place: int | None) -> str | None:
    return None if place is None else base64.urlsafe_b64encode(f"c{place}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        if text[:1] != "c":
            raise ValueError
        return int(text[1:])
    except (ValueError, binascii.Error):
        raise InvalidRequestError("not a cursor of this service; leave it out to begin", pointer="?cursor") from None
