"""What machines and operators ask: probes, metrics, and which model is served."""

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.problems import JsonResponse

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthReport(Protocol):
    """What the probes read."""

    def reasons(self) -> list[str]:
        """Why not ready; empty when ready."""
        ...

    def report(self) -> Mapping[str, object]:
        """For people."""
        ...


class MetricsText(Protocol):
    """What /metrics reads."""

    def expose(self) -> bytes:
        """The text format."""
        ...


class ModelReport(Protocol):
    """What GET /model reads."""

    def __call__(self) -> Mapping[str, Any]:
        """The fields of `ModelResponse`."""
        ...


class FieldOut(BaseModel):
    """A field that filters may name."""

    name: str
    numeric: bool = Field(description="numbers occur in it: min and max apply")
    values: list[str | bool] = Field(description="its most common values that are no numbers")


class ModelResponse(BaseModel):
    """Answer of GET /model."""

    model_version: str
    created_at: str
    catalog_version: int
    catalog_hash: str = Field(description="digest of its items, their SIDs and contents; equal on replicas that agree")
    catalog_items: int
    new_items: int = Field(description="items newer than the model")
    levels: int
    codes: int = Field(description="codes per level")
    max_history_items: int = Field(description="items of a history that the model reads")
    beam_width: int
    exclude_seen: bool = Field(description="the default of `exclude_seen`")
    event_weights: dict[str, float] = Field(description="kinds of events; those of weight 0 enter no history")
    cold_new_share: float
    smoothing: dict[str, float] = Field(description="how items newer than the model borrow probability in the beam")
    new_item_share: float = Field(
        description="largest share of an answer's places that items newer than the model take"
    )
    new_item_dial: dict[str, float | str] | None = Field(
        description="how they are scored beside the beam (service/README.md); null: the beam is their only way"
    )
    filter_fields: list[FieldOut]
    data: dict[str, Any] = Field(description="what the model was trained with")
    metrics: dict[str, Any] = Field(description="what the training measured")


def model_router(report: ModelReport) -> APIRouter:
    """GET /model."""
    router = APIRouter(tags=["model"])

    @router.get("/model", response_model=ModelResponse, summary="What is served")
    async def model() -> Response:
        return JsonResponse(report())

    return router


def probe_router(health: HealthReport, metrics: MetricsText) -> APIRouter:
    """The paths that need no key."""
    router = APIRouter(tags=["operation"])

    @router.get("/health/live", summary="Does the event loop turn?")
    async def live() -> Response:
        return JsonResponse({"status": "live"})

    @router.get("/health/ready", summary="Should this replica get requests?")
    async def ready() -> Response:
        reasons = health.reasons()
        status = "unready" if reasons else "ready"
        return JsonResponse({"status": status, "reasons": reasons}, 503 if reasons else 200)

    @router.get("/health", summary="The same for people")
    async def health_report() -> Response:
        return JsonResponse(health.report())

    @router.get("/metrics", summary="Prometheus' text format")
    async def metrics_text() -> Response:
        return Response(metrics.expose(), media_type=PROMETHEUS_TEXT)

    return router
