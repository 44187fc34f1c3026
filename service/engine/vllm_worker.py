"""What the service may ask of a vLLM worker beside requests: another catalogue version, other embedding rows.

Mixed into vLLM's worker class by name; called through ``collective_rpc`` between two engine steps, with plain data
only.
"""

from collections.abc import Sequence
from typing import Any

from service.engine.wire import decode_delta, decode_tokens


class CatalogWorker:
    """Adds ``groundrec_*`` to the worker."""

    model_runner: Any

    def groundrec_update_catalog(self, delta: dict[str, Any]) -> int:
        """Apply an encoded delta; returns the newest version held."""
        versions = self.model_runner.model.pooler.versions
        versions.apply(decode_delta(delta))
        return int(versions.latest)

    def groundrec_catalog_bytes(self) -> int:
        """Memory of the newest catalogue version and the filters kept, in bytes."""
        return int(self.model_runner.model.pooler.versions.num_bytes)

    def groundrec_write_tokens(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Write encoded rows; returns whether a cached prompt may hold one of the tokens."""
        return bool(self.model_runner.model.write_tokens(decode_tokens(rows)))
