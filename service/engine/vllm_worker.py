"""What the service may ask of a vLLM worker beside requests: to take the next catalogue version.

Mixed into vLLM's worker class by name; called through ``collective_rpc`` between two engine steps, with plain data
only.
"""

from typing import Any

from service.engine.wire import decode_delta


class CatalogWorker:
    """Adds ``groundrec_update_catalog`` to the worker."""

    model_runner: Any

    def groundrec_update_catalog(self, delta: dict[str, Any]) -> int:
        """Apply an encoded delta; returns the newest version held."""
        versions = self.model_runner.model.pooler.versions
        versions.apply(decode_delta(delta))
        return int(versions.latest)
