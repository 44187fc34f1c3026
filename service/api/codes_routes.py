"""Opening spare codes for kinds of items that the codebooks do not know. Scope ``admin``: it changes many items."""

from collections.abc import Callable, Mapping
from dataclasses import asdict

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.fields import Body
from service.api.problems import JsonResponse
from service.code_opening import CodeOpening
from service.errors import ConflictError

Openings = Callable[[], Mapping[str, CodeOpening]]


class OpenCodes(Body):
    """Body of POST /catalog/codes."""

    dry_run: bool = Field(False, description="say what would be opened, change nothing")


class OpenedCodeRow(BaseModel):
    """One code that was, or would be, opened."""

    level: int = Field(description="0-based")
    code: int
    items: int = Field(description="posted items that it explains better than their present codes")
    left_before: float = Field(description="share of them that the present codes leave unexplained")
    left_after: float
    titles: list[str] = Field(description="some of them")


class CodesOfModel(BaseModel):
    """What was found and done for the catalogue of one model."""

    model_version: str
    dry_run: bool
    codes: list[OpenedCodeRow]
    moved: int = Field(description="posted items that got another semantic ID")
    free: list[int] = Field(description="spare codes left, per level")
    catalog_version: int


class CodesResponse(BaseModel):
    """Answer of POST /catalog/codes."""

    models: list[CodesOfModel]


def codes_router(openings: Openings) -> APIRouter:
    """All of /catalog/codes."""
    router = APIRouter(tags=["models"])

    @router.post("/catalog/codes", response_model=CodesResponse, summary="Open codes for unknown kinds of items")
    async def open_codes(body: OpenCodes) -> Response:
        found = openings()
        if not found:
            raise ConflictError("no model here has spare codes; train one with sids.spare_codes above 0")
        reports = {version: await opening.run(dry_run=body.dry_run) for version, opening in found.items()}
        return JsonResponse({"models": [{"model_version": each} | asdict(reports[each]) for each in reports]})

    return router
