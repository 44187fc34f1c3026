"""All paths together. Each group has a file of its own; this one says where they are found.

``/v1/...`` is canonical; the bare paths are aliases for ever. A query parameter that no route knows is refused.
"""

import difflib
from dataclasses import dataclass

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute

from service.api.codes_routes import Openings, codes_router
from service.api.docs_routes import install_docs
from service.api.events_routes import events_router, users_router
from service.api.items_routes import items_router
from service.api.models_routes import models_router
from service.api.playground_routes import install_playground, playground_router
from service.api.probe_routes import HealthReport, MetricsText, ModelReport, model_router, probe_router
from service.api.recommend_routes import recommend_router
from service.catalog_tree import CatalogTree
from service.errors import InvalidRequestError
from service.events import Events
from service.histories import Histories
from service.ingest_all import IngestAll
from service.lane import CurrentCatalog
from service.models import Models
from service.recommend import Recommender


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the routes call."""

    recommender: Recommender
    ingest: IngestAll
    events: Events
    histories: Histories
    catalogs: CurrentCatalog
    tree: CatalogTree
    model: ModelReport
    models: Models
    openings: Openings
    health: HealthReport
    metrics: MetricsText


def install_routes(app: FastAPI, endpoints: Endpoints) -> None:
    """Add every path to the application."""
    checked = [Depends(refuse_unknown_query)]
    for calls in _routers(endpoints):
        app.include_router(calls, prefix="/v1", dependencies=checked)
        app.include_router(calls, include_in_schema=False, dependencies=checked)
    app.include_router(probe_router(endpoints.health, endpoints.metrics), dependencies=checked)
    install_docs(app)
    install_playground(app)


def _routers(endpoints: Endpoints) -> list[APIRouter]:
    return [
        recommend_router(endpoints.recommender),
        items_router(endpoints.ingest, endpoints.catalogs),
        events_router(endpoints.events),
        users_router(endpoints.events, endpoints.histories, endpoints.catalogs),
        model_router(endpoints.model),
        models_router(endpoints.models),
        codes_router(endpoints.openings),
        playground_router(endpoints.tree, endpoints.histories, endpoints.catalogs),
    ]


async def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not know: a misspelt ``dry_run`` would write.

    Raises:
        InvalidRequestError: there is one; it names the nearest known one.
    """
    route = request.scope.get("route")
    known = [field.alias for field in route.dependant.query_params] if isinstance(route, APIRoute) else []
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
            raise InvalidRequestError(f"there is no such query parameter; {hint}", pointer=f"?{name}")
