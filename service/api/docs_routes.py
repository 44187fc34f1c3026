"""/docs: Swagger UI over our own OpenAPI document, its script and style from an installed package, nothing from afar.

The OpenAPI document is what FastAPI derives from routes and schemas, plus how keys are sent and what errors look like.
It is committed, see `openapi_file`, so that a change of the contract is seen.
"""

from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from service.api.problems import JsonResponse

ASSETS = "/docs/assets"
PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


_TEXT = {"type": "string"}
_PROBLEM_SCHEMAS: dict[str, Any] = {
    "Problem": {
        "type": "object",
        "description": "RFC 9457",
        "required": ["type", "title", "status", "detail", "instance", "request_id", "errors"],
        "properties": {
            "type": {"type": "string", "description": "urn:groundrec:problem:NAME"},
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "instance": _TEXT,
            "request_id": _TEXT,
            "errors": {
                "type": "array",
                "items": {"type": "object", "properties": {"pointer": _TEXT, "code": _TEXT, "detail": _TEXT}},
            },
        },
    }
}
_PROBLEM_RESPONSE = {
    "description": "A problem document; 429 and 503 say in Retry-After when to come back",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def install_docs(app: FastAPI) -> None:
    """Add the page, its files and the document."""
    app.mount(ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JsonResponse(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="groundrec: the HTTP contract",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )
        page.headers["content-security-policy"] = PAGE_POLICY
        return page

    app.openapi = lambda: document(app)  # type: ignore[method-assign]


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once per application."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version="1", description=app.description, routes=app.routes)
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        made.setdefault("components", {})["securitySchemes"] = schemes
        made["components"]["schemas"] |= _PROBLEM_SCHEMAS
        made["security"] = [{"bearer": []}, {"apiKey": []}]
        for operation in (each for path in made["paths"].values() for each in path.values()):
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _PROBLEM_RESPONSE
        app.openapi_schema = made
    return app.openapi_schema
