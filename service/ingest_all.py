"""Items for every served model: posted to the primary's log and to that of each model with another quantiser.

An item is acknowledged only when every log has it; a call that failed halfway is repeated by the client and changes
nothing where it had succeeded. What is answered (SID, neighbours) is the primary's.
"""

import asyncio
from collections.abc import Callable, Sequence

from service.ingest import Ingest, IngestedItem
from service.model.checkpoint import ItemRecord

Ingests = Callable[[], Sequence[Ingest]]


class IngestAll:
    """``ingests`` gives one ingest per log, the primary's first, as they are at the moment."""

    def __init__(self, ingests: Ingests) -> None:
        self._ingests = ingests

    async def post(self, posted: Sequence[ItemRecord], *, dry_run: bool = False) -> list[IngestedItem]:
        """See `Ingest.post`."""
        first, *others = self._ingests()
        answer = await first.post(posted, dry_run=dry_run)
        if not dry_run:
            await asyncio.gather(*(other.post(posted) for other in others))
        return answer

    async def delete(self, item_id: str) -> bool:
        """See `Ingest.delete`."""
        deleted = await asyncio.gather(*(ingest.delete(item_id) for ingest in self._ingests()))
        return any(deleted)
