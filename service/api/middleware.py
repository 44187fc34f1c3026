"""Around every request: its id, its measure, its place, its size limit, and its end when the client goes away.

Pure ASGI, because what wraps the body as a stream must see its messages. Order, outermost first: `RequestRecord`,
`ClientWatch`, `auth.Guard`, `Gate`; so a refused request is recorded too, and nothing is parsed before its key is known
and there is a place for it.
"""

import asyncio
import re
import time
import uuid
from contextlib import suppress

import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.admission import Admission
from service.api.problems import problem_of
from service.errors import MediaTypeError, OverloadedError
from service.metrics import Metrics
from service.tracing import NO_SPAN, Span

MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 2.0
ROUTES = {
    "/recommend",
    "/recommend:batch",
    "/items",
    "/events",
    "/model",
    "/models",
    "/users:sample",
    "/catalog/tree",
    "/catalog/fields",
}
FAILURES = ("error", "unavailable")
QUIET = ("/health", "/metrics", "/playground/static")
TRACE_HEADERS = ("traceparent", "tracestate")
JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json\s*(;.*)?", re.IGNORECASE)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestRecord:
    """Gives the request its id, then counts, times and logs it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and record how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope.setdefault("state", {})["request_id"] = _request_id(scope)
        if scope["path"].removeprefix("/v1").startswith(QUIET):
            await self._serve(scope, receive, send, request_id, NO_SPAN)
            return
        with self._metrics.tracing.request(_caller(scope)) as span:
            await self._serve(scope, receive, send, request_id, span)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str, span: Span) -> None:
        status, start = 0, time.perf_counter()

        async def recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        names = {"request_id": request_id} | ({"trace_id": span.trace_id} if span.trace_id else {})
        with structlog.contextvars.bound_contextvars(**names):
            try:
                await self._app(scope, receive, recorded)
            except Exception:
                status = 500  # answered outside of this middleware, as every bug is
                raise
            finally:
                self._record(scope, status, time.perf_counter() - start)
                span.rename(f"{scope['method']} {_route(scope)}")
                span.set(method=scope["method"], route=_route(scope), status=status, request_id=request_id)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route(scope)
        if route.startswith(QUIET):
            return
        self._metrics.requests.labels(route, _outcome(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        log = structlog.get_logger()
        log.info("request", route=route, status=status, took_ms=round(1000 * seconds, 2))


class ClientWatch:
    """Cancels the work when the client hangs up: a plain handler would compute on for nobody."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request for as long as somebody waits for it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = _Connection(receive, send)
        work = asyncio.ensure_future(self._app(scope, connection.receive, connection.send))
        watch = asyncio.ensure_future(connection.watch(work))
        try:
            await work
        except asyncio.CancelledError:
            if not connection.dropped:
                raise
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch


class _Connection:
    """Passes messages on, one ahead, so that a disconnect is noticed while the application works."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        self._answered = False
        self.dropped = False

    async def watch(self, work: "asyncio.Future[None]") -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
            await self._messages.put(message)
        if not self._answered:
            self.dropped = True
            work.cancel()

    async def receive(self) -> Message:
        return await self._messages.get()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)


class Gate:
    """Admits POSTs while there is a place, and counts their bodies while they come in."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request if there is a place for it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            with self._admission.enter():
                _check_type(scope)
                await self._app(scope, _limited(scope, receive), send)
        except (OverloadedError, MediaTypeError) as error:
            await problem_of(scope, error)(scope, receive, send)


def _check_type(scope: Scope) -> None:
    """Refuse a body that is not declared to be JSON: a page elsewhere can make browsers send any other kind."""
    given = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
    if not JSON_TYPE.fullmatch(given):
        raise MediaTypeError(
            "send the header `content-type: application/json` (curl: -H 'content-type: application/json')"
        )


def _limited(scope: Scope, receive: Receive) -> Receive:
    """``receive`` that refuses a body over the limit, announced or not, and one that does not arrive in time.

    Without the latter a few idle connections would hold every place there is.
    """
    taken, until = 0, asyncio.get_running_loop().time() + BODY_SECONDS
    announced = dict(scope["headers"]).get(b"content-length", b"0")

    async def limited() -> Message:
        nonlocal taken
        if announced.isdigit() and int(announced[:12]) > MAX_BODY_BYTES:
            raise HTTPException(413)
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408) from None
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise HTTPException(413)
        return message

    return limited


def route_names(app: FastAPI) -> list[str]:
    """What the routes of an application are called in metrics and logs."""
    paths = {route.path.removeprefix("/v1") for route in app.routes if isinstance(route, APIRoute)}
    return sorted(path for path in paths if not path.startswith(QUIET))


def _route(scope: Scope) -> str:
    """The route's own path, never the client's; a request refused before routing is known by its path."""
    route = getattr(scope.get("route"), "path", None)
    if route is None:
        path = scope["path"].removeprefix("/v1")
        route = path if path in ROUTES else "unmatched"
    return str(route).removeprefix("/v1")


def _request_id(scope: Scope) -> str:
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _caller(scope: Scope) -> dict[str, str]:
    """What a caller says of the trace that the request belongs to."""
    headers = dict(scope["headers"])
    return {name: headers[name.encode()].decode("latin-1") for name in TRACE_HEADERS if name.encode() in headers}


def _outcome(status: int) -> str:
    if status == 0:
        return "dropped"
    if status < 400:
        return "ok"
    return "invalid" if status < 500 else "unavailable" if status == 503 else "error"
