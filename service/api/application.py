"""The ASGI application over started parts: routes, problem documents and what wraps every request.

It starts and stops nothing, so tests can drive it without a server.
"""

from fastapi import FastAPI

from service.admission import Admission
from service.api.auth import Guard
from service.api.middleware import FAILURES, ClientWatch, Gate, RequestRecord, route_names
from service.api.problems import install_problems
from service.api.routes import Endpoints, install_routes
from service.api_keys import KeyRing
from service.metrics import Metrics

DESCRIPTION = (
    "Recommendations by a language model over Semantic IDs, and a catalogue that takes items while it runs. "
    "Errors are RFC 9457 problem documents. Paths without `/v1` are aliases."
)


def create_app(endpoints: Endpoints, metrics: Metrics, max_inflight: int, keys: KeyRing | None = None) -> FastAPI:
    """The application; middleware added last is outermost. Without ``keys`` everybody may do everything."""
    # FastAPI's own documentation pages load their scripts from the internet; ours are in `docs_routes`.
    app = FastAPI(
        title="groundrec",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    install_problems(app)
    install_routes(app, endpoints)
    for path in route_names(app):
        for outcome in FAILURES:
            metrics.requests.labels(path, outcome)  # at 0, or the first failure would be no increase
    app.add_middleware(Gate, admission=Admission(max_inflight, metrics))
    app.add_middleware(Guard, keys=keys, metrics=metrics)
    app.add_middleware(ClientWatch)
    app.add_middleware(RequestRecord, metrics=metrics)
    return app
