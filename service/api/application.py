"""The ASGI application over started parts: routes, problem documents and what wraps every request.

It starts and stops nothing, so tests can drive it without a server.
"""

from fastapi import FastAPI

from service.admission import Admission
from service.api.middleware import ClientWatch, Gate, RequestRecord
from service.api.problems import install_problems
from service.api.routes import Endpoints, install_routes
from service.metrics import Metrics


def create_app(endpoints: Endpoints, metrics: Metrics, max_inflight: int) -> FastAPI:
    """The application; middleware added last is outermost."""
    # No documentation pages yet: FastAPI's own load their scripts from the internet.
    app = FastAPI(title="groundrec", docs_url=None, redoc_url=None)
    install_problems(app)
    install_routes(app, endpoints)
    app.add_middleware(Gate, admission=Admission(max_inflight, metrics))
    app.add_middleware(ClientWatch)
    app.add_middleware(RequestRecord, metrics=metrics)
    return app
