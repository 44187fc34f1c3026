"""The committed OpenAPI document: ``python -m service.api.openapi_file`` writes it anew from routes and schemas.

It needs no checkpoint, no Redis and no engine: paths and schemas do not depend on what stands behind them.
"""

from pathlib import Path
from typing import Any, cast

import orjson

from service.api.application import create_app
from service.api.routes import Endpoints
from service.metrics import Metrics

OPENAPI_FILE = Path(__file__).with_name("openapi.json")


class _Nothing:
    """Stands behind routes that are never called; has every attribute."""

    def __getattr__(self, name: str) -> "_Nothing":
        return self


def openapi_text() -> bytes:
    """The document as it must be committed."""
    nothing = cast(Any, _Nothing())
    endpoints = Endpoints(**dict.fromkeys(Endpoints.__dataclass_fields__, nothing))
    document = create_app(endpoints, Metrics(), 1).openapi()
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


if __name__ == "__main__":
    OPENAPI_FILE.write_bytes(openapi_text())
