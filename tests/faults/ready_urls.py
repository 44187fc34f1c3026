"""The replicas that a balancer would send to: those whose readiness probe said 200 a moment ago."""

import asyncio
from types import TracebackType

from tests.faults.stage import Stage

PROBE_SECONDS = 0.2


class ReadyUrls:
    """An async context; ``urls`` is changed in place, and never empty: the last that was ready stays."""

    def __init__(self, at: Stage) -> None:
        self._at = at
        self.urls = list(at.urls)

    async def __aenter__(self) -> list[str]:
        self._probing = asyncio.create_task(self._probe())
        return self.urls

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._probing.cancel()

    async def _probe(self) -> None:
        while True:
            told = await asyncio.gather(*(replica.readiness(self._at.client) for replica in self._at.replicas))
            ready = [url for url, status in zip(self._at.urls, told, strict=True) if status == 200]
            self.urls[:] = ready or self.urls
            await asyncio.sleep(PROBE_SECONDS)
