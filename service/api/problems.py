"""Every error as one RFC 9457 document, whoever raised it: us, the validation, the router or a bug.

What the client sent is never echoed whole: pointers and messages are cut and escaped, so an answer stays small and
valid JSON whatever came in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from service.errors import RequestError

MAX_ERRORS = 10
MAX_CHARS = 160

TITLES = {
    400: ("malformed-body", "The body is not readable JSON"),
    404: ("not-found", "There is nothing at this path"),
    405: ("method-not-allowed", "The path exists, the method does not"),
    408: ("body-too-slow", "The body did not arrive in time"),
    413: ("body-too-large", "The body is too large"),
}


class JsonResponse(Response):
    """Dataclasses and plain data, by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return orjson.dumps(content)


class ProblemResponse(JsonResponse):
    """One problem document."""

    media_type = "application/problem+json"


def problem_of(scope: Scope, error: RequestError, headers: Mapping[str, str] | None = None) -> ProblemResponse:
    """The answer for one of our errors."""
    retry = {} if error.retry_after_seconds is None else {"retry-after": str(error.retry_after_seconds)}
    return ProblemResponse(problem_content(scope, error), error.status, {**retry, **(headers or {})})


def problem_content(scope: Scope, error: RequestError) -> dict[str, Any]:
    """The document of one of our errors."""
    pointed = {"pointer": _short(error.pointer or ""), "code": error.problem, "detail": _short(error.detail)}
    return _content(scope, error.status, error.problem, error.title, error.detail, [pointed] if error.pointer else [])


def validation_content(scope: Scope, error: RequestValidationError) -> dict[str, Any]:
    """The document of fields that cannot be accepted."""
    found = error.errors()
    errors = [
        {"pointer": _pointer(item["loc"]), "code": item["type"], "detail": _short(item["msg"])}
        for item in found[:MAX_ERRORS]
    ]
    detail = f"{len(found)} field{'s' if len(found) > 1 else ''} cannot be accepted"
    return _content(scope, 422, "invalid-request", "The request is invalid", detail, errors)


def install_problems(app: FastAPI) -> None:
    """Answer every exception with a problem document."""
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return problem_of(request.scope, error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        slug, title = TITLES[400]
        return _problem(request.scope, 400, slug, title, "the body is not valid JSON")
    return ProblemResponse(validation_content(request.scope, error), 422)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    slug, title = TITLES.get(error.status_code, (f"http-{error.status_code}", "The request cannot be answered"))
    return _problem(request.scope, error.status_code, slug, title, title, headers=error.headers)


async def _on_bug(request: Request, error: Exception) -> Response:
    structlog.get_logger().error("internal_error", exc_info=error)
    # the server closes after an exception: a client that was not told would send its next request into the closing
    headers = {"x-request-id": request.scope.get("state", {}).get("request_id", ""), "connection": "close"}
    detail = "this is a bug; the log has the details"
    return _problem(request.scope, 500, "internal-error", "Internal error", detail, headers=headers)


def _problem(
    scope: Scope, status: int, slug: str, title: str, detail: str, headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    return ProblemResponse(_content(scope, status, slug, title, detail), status, dict(headers or {}))


def _content(
    scope: Scope, status: int, slug: str, title: str, detail: str, errors: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    return {
        "type": f"urn:groundrec:problem:{slug}",
        "title": title,
        "status": status,
        "detail": _short(detail),
        "instance": _short(scope["path"]),
        "request_id": scope.get("state", {}).get("request_id", ""),
        "errors": list(errors),
    }


def _pointer(location: Sequence[int | str]) -> str:
    """A JSON pointer into the body; ``?name`` for a query parameter."""
    if location and location[0] == "query":
        return _short("?" + ".".join(map(str, location[1:])))
    parts = [str(part) for part in location[1:] if not str(part).startswith("~")]
    return _short("".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts))


def _short(text: str) -> str:
    printable = text.encode("ascii", "backslashreplace").decode()
    return printable if len(printable) <= MAX_CHARS else printable[: MAX_CHARS - 3] + "..."
