"""The paths. Each handler turns a checked request into a use case's call and its result into JSON; nothing more.

``/v1/...`` is canonical; the bare paths are aliases for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from service.api.items_routes import items_router
from service.api.problems import JsonResponse
from service.api.schemas import ModelResponse, RecommendRequest, RecommendResponse
from service.ingest import Ingest
from service.recommend import Recommender

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


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the routes call."""

    recommender: Recommender
    ingest: Ingest
    model: ModelReport
    health: HealthReport
    metrics: MetricsText


def install_routes(app: FastAPI, endpoints: Endpoints) -> None:
    """Add every path to the application."""
    for calls in (_calls(endpoints), items_router(endpoints.ingest)):
        app.include_router(calls, prefix="/v1")
        app.include_router(calls, include_in_schema=False)
    app.include_router(_probes(endpoints))


def _calls(endpoints: Endpoints) -> APIRouter:
    router = APIRouter()

    @router.post("/recommend", response_model=RecommendResponse)
    async def recommend(body: RecommendRequest) -> Response:
        answer = await endpoints.recommender.recommend(body.query())
        if body.context:
            log = structlog.get_logger()
            log.info("recommendation", recommendation_id=answer.recommendation_id, context=body.context)
        return JsonResponse(answer)

    @router.get("/model", response_model=ModelResponse)
    async def model() -> Response:
        return JsonResponse(endpoints.model())

    return router


def _probes(endpoints: Endpoints) -> APIRouter:
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> Response:
        return JsonResponse({"status": "live"})

    @router.get("/health/ready")
    async def ready() -> Response:
        reasons = endpoints.health.reasons()
        status = "unready" if reasons else "ready"
        return JsonResponse({"status": status, "reasons": reasons}, 503 if reasons else 200)

    @router.get("/health")
    async def health() -> Response:
        return JsonResponse(endpoints.health.report())

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(endpoints.metrics.expose(), media_type=PROMETHEUS_TEXT)

    return router
