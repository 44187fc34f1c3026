"""The playground: one page for people, its files, and the few read-only calls that the page alone needs.

The page is made of files beside this module; it loads nothing from elsewhere, and its Content-Security-Policy makes
the browser hold it to that. Titles are strangers' text, so the policy also forbids every way from text to markup.
"""

from pathlib import Path
from typing import Annotated, Protocol

from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from service.api.problems import JsonResponse
from service.catalog_tree import CatalogTree
from service.lane import CurrentCatalog
from service.model.semantic_ids import MAX_CODES

STATIC = Path(__file__).parent / "static"
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # kept, but asked for again by its ETag: a new version is seen at once
}
PREFIX = r"^(\d{1,4}(,\d{1,4}){0,7})?$"


class SampleUsers(Protocol):
    """Where users with a history are found."""

    async def sample(self, limit: int) -> list[tuple[str, int]]:
        """Some users in no order, each with the length of its history.

        Raises:
            StorageError: no answer.
        """
        ...


class MemberOut(BaseModel):
    """An item of a whole SID."""

    item_id: str
    title: str
    is_new: bool


class ChildOut(BaseModel):
    """One code below the prefix."""

    code: int
    items: int
    new_items: int
    titles: list[str]
    members: list[MemberOut]


class TreeResponse(BaseModel):
    """Answer of GET /catalog/tree."""

    catalog_version: int
    levels: int
    codes: int
    prefix: list[int]
    items: int
    children: list[ChildOut]
    next: int | None


class UserOut(BaseModel):
    """A user that has a history."""

    user_id: str
    items: int


class UsersResponse(BaseModel):
    """Answer of GET /users:sample."""

    users: list[UserOut]


class FieldOut(BaseModel):
    """An attribute that items have."""

    name: str
    numeric: bool = Field(description="whether `min` and `max` may name it")
    values: list[str | bool] = Field(description="some of its values that are no numbers, most common first")


class FieldsResponse(BaseModel):
    """Answer of GET /catalog/fields."""

    fields: list[FieldOut]


def install_playground(app: FastAPI) -> None:
    """Add the page and its files; they say nothing of users or items and need no key."""
    files = StaticFiles(directory=STATIC)

    async def answer(name: str, request: Request) -> Response:
        response = await files.get_response(name, request.scope)
        response.headers.update(PAGE_HEADERS)
        return response

    @app.get("/playground", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await answer("playground.html", request)

    @app.get("/playground/", include_in_schema=False)
    async def without_slash() -> Response:
        return RedirectResponse("../playground")  # the page's links are relative, so that a proxy may move it

    @app.get("/playground/static/{name:path}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        return await answer(name, request)


def playground_router(tree: CatalogTree, users: SampleUsers, catalogs: CurrentCatalog) -> APIRouter:
    """GET /catalog/tree, GET /catalog/fields and GET /users:sample."""
    router = APIRouter(tags=["playground"])

    @router.get("/catalog/tree", response_model=TreeResponse, summary="One level of the tree of semantic IDs")
    async def catalog_tree(
        prefix: Annotated[str, Query(pattern=PREFIX, description="codes, separated by commas; empty: the root")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        after: Annotated[int | None, Query(ge=0, le=MAX_CODES, description="go on after this code")] = None,
    ) -> Response:
        codes = [int(code) for code in prefix.split(",")] if prefix else []
        return JsonResponse(await tree.level(codes, limit=limit, after=after))

    @router.get("/catalog/fields", response_model=FieldsResponse, summary="What filters may name")
    async def catalog_fields() -> Response:
        return JsonResponse({"fields": catalogs.current.fields()})

    @router.get("/users:sample", response_model=UsersResponse, summary="Some users that have a history")
    async def sample_users(limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
        found = await users.sample(limit)
        return JsonResponse({"users": [{"user_id": user_id, "items": items} for user_id, items in found]})

    return router
