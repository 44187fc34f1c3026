"""An engine behind a queue that counts beam rows; the same protocol, so nobody in front of it needs to know.

Only recommendations wait: a canary must see the engine itself, and a new catalogue version must not stand behind
requests for old ones. Optionally a beam is halved when others wait: half the width costs a little ranking quality at
the far end and nearly halves the work, and an answer says that it happened.
"""

import dataclasses
from collections.abc import Sequence

from service.beam_rows import BeamRows
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, Engine, EngineStatistics, TokenRow


class AdmittedEngine:
    """Implements `service.engine.base.Engine` over another engine."""

    def __init__(self, engine: Engine, beam_rows: BeamRows, *, narrow_under_load: bool = False) -> None:
        self._engine = engine
        self._beam_rows = beam_rows
        self._narrow_under_load = narrow_under_load

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`.

        Raises:
            OverloadedError: too many beams wait already.
        """
        narrower = self._narrowed(request)
        rows, tokens = narrower.beam_width, len(narrower.prompt_ids)
        async with self._beam_rows.place(rows, tokens, narrower.deadline):
            answer = await self._engine.recommend(request_id, narrower)
        return answer if narrower is request else dataclasses.replace(answer, beam_width=rows)

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """See `Engine.update_catalog`."""
        await self._engine.update_catalog(delta)

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """See `Engine.write_tokens`."""
        await self._engine.write_tokens(rows)

    async def statistics(self) -> EngineStatistics:
        """See `Engine.statistics`."""
        return await self._engine.statistics()

    async def canary(self) -> None:
        """See `Engine.canary`."""
        await self._engine.canary()

    async def gone(self) -> None:
        """See `Engine.gone`."""
        await self._engine.gone()

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()

    def _narrowed(self, request: BeamRequest) -> BeamRequest:
        """The request, or one with half its beams (never fewer than its results) when others wait and it is allowed."""
        if not self._narrow_under_load or not self._beam_rows.waiting_rows or request.num_results is None:
            return request
        width = max(request.num_results, request.beam_width // 2)
        return request if width >= request.beam_width else dataclasses.replace(request, beam_width=width)
