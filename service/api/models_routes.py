"""Which models are served from this replica: list them, open another, share traffic, take one out. Scope ``admin``."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.fields import Body
from service.api.problems import JsonResponse
from service.models import Models, ModelStatus

Version = Annotated[str, Path(max_length=64)]
Share = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False, description="traffic beside the others' shares")]


class OpenModel(Body):
    """Body of POST /models."""

    checkpoint: str = Field(min_length=1, max_length=1024, description="folder below the models' root")
    share: Share = 0.0
    shadow: bool = Field(False, description="rank what others answer, for the metrics only")
    replace: bool = Field(False, description="when it is ready: take all traffic, close the others")


class ChangeModel(Body):
    """Body of PATCH /models/{model_version}; what is left out stays."""

    share: Share | None = None
    shadow: bool | None = None


class ModelState(BaseModel):
    """One model."""

    checkpoint: str
    state: str = Field(description="opening, open, closing or failed")
    model_version: str | None
    share: float
    shadow: bool
    well: bool = Field(description="its engine answers")
    inflight: int
    catalog_version: int | None
    fault: str | None = Field(description="why it could not be opened")


class ModelList(BaseModel):
    """Answer of GET /models."""

    models: list[ModelState]


def models_router(models: Models) -> APIRouter:
    """All of /models."""
    router = APIRouter(tags=["models"])

    @router.get("/models", response_model=ModelList, summary="Models of this replica")
    async def list_models() -> Response:
        return JsonResponse({"models": [asdict(each) for each in models.list()]})

    @router.post("/models", response_model=ModelState, status_code=202, summary="Open a checkpoint beside the others")
    async def open_model(body: OpenModel) -> Response:
        opening = models.open(body.checkpoint, share=body.share, shadow=body.shadow, replace=body.replace)
        return _accepted(opening)

    @router.patch("/models/{model_version}", response_model=ModelState, summary="Another share, or shadow mode")
    async def change_model(model_version: Version, body: ChangeModel) -> Response:
        return JsonResponse(asdict(models.change(model_version, share=body.share, shadow=body.shadow)))

    @router.delete("/models/{model_version}", response_model=ModelState, status_code=202, summary="Take a model out")
    async def close_model(model_version: Version) -> Response:
        return _accepted(models.close(model_version))

    return router


def _accepted(status: ModelStatus) -> Response:
    return JsonResponse(asdict(status), 202)
