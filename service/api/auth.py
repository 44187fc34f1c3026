"""Who may call what. Closed by default: a path is open only if it is listed here, and only its scope opens another.

It stands before everything that reads a body. A key comes as ``Authorization: Bearer``, as ``X-API-Key``, or, for the
pages that a browser opens by their address, as the password of ``Authorization: Basic``. It stores no keys.
"""

import base64
import binascii

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import problem_of
from service.api.quota import BUCKET, Quotas
from service.api_keys import Client, KeyRing
from service.errors import ForbiddenError, QuotaError, RequestError, UnauthorizedError
from service.metrics import Metrics

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
PLAYGROUND = "/playground"  # a page without data, which asks for the key itself
PAGES = ("/docs", "/openapi.json")
ANY_SCOPE = "any"

_SCOPES = {
    "recommend": "recommend",
    "recommend:batch": "recommend",
    "model": "recommend",
    "events": "events",
    "users": "events",
    "items": "items",
    "catalog": "recommend",
    "playground": ANY_SCOPE,
    "docs": ANY_SCOPE,
    "openapi.json": ANY_SCOPE,
}


class Guard:
    """Lets a request in if its key may do what it asks, and has not asked too often."""

    def __init__(self, app: ASGIApp, keys: KeyRing | None, metrics: Metrics) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics
        self._quotas = Quotas()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or self._keys is None or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope, self._keys)
        except RequestError as error:
            await problem_of(scope, error, _challenge(scope, error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, keys: KeyRing) -> None:
        key = _key(dict(scope["headers"]))
        if key is None:
            raise UnauthorizedError("send your key as `Authorization: Bearer KEY` or `X-API-Key: KEY`")
        client = keys.find(key)
        if client is None:
            raise UnauthorizedError("the key is not known; it may have been retired")
        needed = required_scope(scope["method"], scope["path"])
        if needed != ANY_SCOPE and not client.may(needed):
            raise ForbiddenError(f"the key lacks the scope `{needed}`")
        self._enter(scope, client)

    def _enter(self, scope: Scope, client: Client) -> None:
        bucket = self._quotas.bucket(client)
        if bucket is None:
            return
        try:
            bucket.enter()
        except QuotaError:
            self._metrics.shed.labels("quota").inc()
            raise
        scope.setdefault("state", {})[BUCKET] = bucket


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path == PLAYGROUND or path.startswith(f"{PLAYGROUND}/")


def required_scope(method: str, path: str) -> str:
    """What a key needs for a path; ``admin`` for whatever is not listed."""
    first = path.removeprefix("/v1").removeprefix("/").partition("/")[0]
    if first == "users" and method == "DELETE":
        return "admin"
    if first == "catalog" and method not in ("GET", "HEAD"):
        return "admin"
    return _SCOPES.get(first, "admin")


def _key(headers: dict[bytes, bytes]) -> str | None:
    if plain := headers.get(b"x-api-key"):
        return plain.decode("latin-1")
    scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return _password(value.strip()) if scheme.lower() == "basic" else None


def _password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2] or None
    except (binascii.Error, ValueError):
        return None


def _challenge(scope: Scope, error: RequestError) -> dict[str, str]:
    """A browser that opens a page asks its user for the key: any name, the key as password."""
    if not isinstance(error, UnauthorizedError):
        return {}
    kind = "Basic" if scope["path"].startswith(PAGES) else "Bearer"
    return {"www-authenticate": f'{kind} realm="groundrec"'}
