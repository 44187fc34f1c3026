"""The use case of POST /items: clean -> ground -> claim a SID and append to the log -> wait until it shows here.

"created" and "updated" are said only after the log acknowledged. Everything is idempotent by item id and content, so a
client that got an error repeats the whole call. An updated item keeps its SID unless its text moved to another prefix;
an item of the checkpoint's own catalogue always keeps it, because that is what the model learned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.catalog import Catalog, content_hash
from service.errors import DeadlineError
from service.grounder import Grounded, Grounder
from service.metrics import Metrics
from service.model.checkpoint import ItemRecord
from service.model.item_text import MAX_TITLE_CHARS, AttributeValue, clean_text
from service.model.semantic_ids import Sid
from service.stores.base import Claim, ItemDraft, ItemLog

VISIBLE_SECONDS = 2.0

Result = Literal["created", "updated", "unchanged", "rejected"]


@dataclass(frozen=True, slots=True)
class IngestedItem:
    """What became of one posted item."""

    item_id: str
    result: Result
    semantic_id: Sid | None = None
    collides_with: str | None = None
    grounding: Grounded | None = None
    reason: str | None = None


class PublishedCatalog(Protocol):
    """The newest catalogue, and how to wait for an entry of the log to be in it."""

    @property
    def current(self) -> Catalog:
        """The newest version."""
        ...

    async def wait_for(self, position: str) -> None:
        """Return once the entry at ``position`` can be recommended here."""
        ...


class Ingest:
    """Takes posted items."""

    def __init__(
        self, catalogs: PublishedCatalog, grounder: Grounder, log: ItemLog, metrics: Metrics, timeout_ms: int
    ) -> None:
        self._catalogs = catalogs
        self._grounder = grounder
        self._log = log
        self._metrics = metrics
        self._timeout_ms = timeout_ms

    async def post(self, posted: Sequence[ItemRecord], *, dry_run: bool = False) -> list[IngestedItem]:
        """Take items in order, one result each.

        Raises:
            StorageError: the log did not acknowledge; items before the failing one may be in it.
            DeadlineError: the same, for want of time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                results, position = await self._write([_clean(item) for item in posted], dry_run)
        except TimeoutError:
            raise DeadlineError("the items could not be written before the deadline; post them again") from None
        if position is not None:
            await self._wait_visible(position, min(deadline, asyncio.get_running_loop().time() + VISIBLE_SECONDS))
        for result in results if not dry_run else ():
            self._metrics.items.labels(result.result).inc()
        return results

    async def _write(self, items: Sequence[ItemRecord], dry_run: bool) -> tuple[list[IngestedItem], str | None]:
        with self._metrics.stage("grounding"):
            texts = [item for item in items if item.title]
            grounded = iter(await self._grounder.ground(texts))
        results, position = [], None
        with self._metrics.stage("item_log"):
            for item in items:
                if not item.title:
                    reason = "the title is empty after cleaning"
                    results.append(IngestedItem(item.item_id, "rejected", reason=reason))
                    continue
                result, at = await self._claim(item, next(grounded), dry_run)
                results.append(result)
                position = at or position
        return results, position

    async def _claim(self, item: ItemRecord, grounded: Grounded, dry_run: bool) -> tuple[IngestedItem, str | None]:
        catalog = self._catalogs.current
        draft = _draft(catalog, item)
        candidates = _candidates(catalog, grounded)
        claim = _foresee(catalog, draft, candidates) if dry_run else await self._log.claim_and_append(draft, candidates)
        collides = claim.collides_with or _bucket_mate(catalog, item.item_id, claim.sid)
        return IngestedItem(item.item_id, claim.result, claim.sid, collides, grounded), claim.position

    async def _wait_visible(self, position: str, deadline: float) -> None:
        # Late is not lost: the write is durable, so running out of time here still is a success.
        with self._metrics.stage("item_visible"):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._catalogs.wait_for(position)
            except TimeoutError:
                pass


def _clean(item: ItemRecord) -> ItemRecord:
    attributes = {clean_text(key, 100): _clean_attribute(value) for key, value in item.attributes.items()}
    return ItemRecord(item.item_id, clean_text(item.title, MAX_TITLE_CHARS), clean_text(item.description), attributes)


def _clean_attribute(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return clean_text(value, MAX_TITLE_CHARS)
    if isinstance(value, (tuple, list)):
        return [clean_text(part, MAX_TITLE_CHARS) for part in value]
    return value


def _draft(catalog: Catalog, item: ItemRecord) -> ItemDraft:
    base = catalog.checkpoint_item(item.item_id)
    if base is None:
        return ItemDraft(item, content_hash(item))
    return ItemDraft(item, content_hash(item), base_hash=base.hash, base_sid=base.sid)


def _candidates(catalog: Catalog, grounded: Grounded) -> list[Sid]:
    """The free SIDs under the item's prefix, nearest first; its own SID, shared, when none is free."""
    return [sid for sid in grounded.candidates if not catalog.bucket(sid)] or [grounded.sid]


def _foresee(catalog: Catalog, draft: ItemDraft, candidates: Sequence[Sid]) -> Claim:
    """What the log would most likely decide."""
    known = catalog.get(draft.item.item_id)
    if known is None:
        return Claim("created", candidates[0])
    if known.hash == draft.content_hash:
        return Claim("unchanged", known.sid)
    keeps = draft.base_sid is not None or known.sid[:-1] == candidates[0][:-1]
    return Claim("updated", known.sid if keeps else candidates[0])


def _bucket_mate(catalog: Catalog, item_id: str, sid: Sid) -> str | None:
    """Who else has the SID already."""
    return next((other for other in catalog.bucket(sid) if other != item_id), None)
