"""The use case of POST and DELETE /items: clean -> ground -> claim a SID and append to the log -> wait until it shows.

"created", "updated" and "deleted" are said only after the log acknowledged. Everything is idempotent by item id and
content, so a client that got an error repeats the whole call. One call is one step in the log: all of its items or
none. An updated item keeps its SID unless its text moved to another prefix; an item of the checkpoint's own catalogue
always keeps it, because that is what the model learned. Which items are shown how often is not decided here.
"""

import asyncio
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.catalog import Catalog
from service.catalog_item import content_hash
from service.errors import DeadlineError
from service.grounder import Grounded, Grounder
from service.metrics import Metrics
from service.model.checkpoint import ItemRecord
from service.model.item_text import MAX_TITLE_CHARS, AttributeValue, clean_text
from service.model.semantic_ids import Sid
from service.stores.item_log import BaseClaim, Claim, ItemDraft, ItemLog, Removal

VISIBLE_SECONDS = 2.0
MAX_NAME_CHARS = 100

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


@dataclass(frozen=True, slots=True)
class _Checked:
    """A cleaned item with its content hash, or why it cannot be taken."""

    item: ItemRecord
    hash: str
    fault: str | None


class PublishedCatalog(Protocol):
    """The newest catalogue, the log it follows, and how to wait for a version of it."""

    @property
    def current(self) -> Catalog:
        """The newest version."""
        ...

    @property
    def generation(self) -> str:
        """The generation of the log that is followed."""
        ...

    async def wait_for(self, version: int) -> None:
        """Return once catalogue version ``version`` can be recommended from here."""
        ...


class Ingest:
    """Takes posted items and takes items away."""

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
            StorageError: the log did not acknowledge; nothing or all of it is in the log.
            DeadlineError: the same, for want of time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        checked = [_check(item) for item in posted]
        try:
            async with asyncio.timeout_at(deadline):
                grounded = await self._ground([one for one in checked if one.fault is None])
                claims = await self._claim(checked, grounded, dry_run)
        except TimeoutError:
            raise DeadlineError("the items could not be written before the deadline; post them again") from None
        await self._wait_visible([claim.version for claim in claims.values() if claim.version], deadline)
        grounds = dict(zip(claims, grounded, strict=True))
        results = [self._result(one, grounds.get(n), claims.get(n)) for n, one in enumerate(checked)]
        for result in results if not dry_run else ():
            self._metrics.items.labels(result.result).inc()
        return results

    async def delete(self, item_id: str) -> bool:
        """Take an item out of every answer; False if there is none.

        Raises:
            StorageError: the log did not acknowledge.
            DeadlineError: the same, for want of time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        removal = Removal(item_id, _base_claim(self._catalogs.current, item_id))
        try:
            async with asyncio.timeout_at(deadline):
                claim = (await self._log.append(self._catalogs.generation, [removal]))[0]
        except TimeoutError:
            raise DeadlineError("the item could not be deleted before the deadline; try again") from None
        await self._wait_visible([claim.version] if claim.version else [], deadline)
        self._metrics.items.labels(claim.result).inc()
        return claim.result == "deleted"

    async def _ground(self, texts: Sequence[_Checked]) -> list[Grounded]:
        with self._metrics.stage("grounding"), self._metrics.grounding_seconds.time():
            return await self._grounder.ground([one.item for one in texts], [one.hash for one in texts])

    async def _claim(
        self, checked: Sequence[_Checked], grounded: Sequence[Grounded], dry_run: bool
    ) -> dict[int, Claim]:
        """The claim of each accepted item, by its number."""
        catalog = self._catalogs.current
        accepted = [number for number, one in enumerate(checked) if one.fault is None]
        drafts = [_draft(catalog, checked[n], ground) for n, ground in zip(accepted, grounded, strict=True)]
        if dry_run:
            return {number: _foresee(catalog, draft) for number, draft in zip(accepted, drafts, strict=True)}
        if not drafts:
            return {}
        with self._metrics.stage("item_log"):
            claims = await self._log.append(self._catalogs.generation, drafts)
        return dict(zip(accepted, claims, strict=True))

    def _result(self, one: _Checked, ground: Grounded | None, claim: Claim | None) -> IngestedItem:
        if claim is None or claim.sid is None:
            return IngestedItem(one.item.item_id, "rejected", reason=one.fault)
        mate = _bucket_mate(self._catalogs.current, one.item.item_id, claim.sid)
        assert claim.result in ("created", "updated", "unchanged")
        return IngestedItem(one.item.item_id, claim.result, claim.sid, mate, ground)

    async def _wait_visible(self, versions: Sequence[int], deadline: float) -> None:
        # Late is not lost: the write is durable, so running out of time here still is a success.
        if not versions:
            return
        soon = min(deadline, asyncio.get_running_loop().time() + VISIBLE_SECONDS)
        with self._metrics.stage("item_visible"):
            try:
                async with asyncio.timeout_at(soon):
                    await self._catalogs.wait_for(max(versions))
            except TimeoutError:
                pass


def _check(item: ItemRecord) -> _Checked:
    attributes = {clean_text(key, MAX_NAME_CHARS): _clean_attribute(value) for key, value in item.attributes.items()}
    title, description = clean_text(item.title, MAX_TITLE_CHARS), clean_text(item.description)
    cleaned = ItemRecord(item.item_id, title, description, attributes)
    return _Checked(cleaned, content_hash(cleaned), _fault(item, cleaned))


def _fault(item: ItemRecord, cleaned: ItemRecord) -> str | None:
    """Why the item cannot be taken, naming the field and what to do."""
    if not cleaned.title:
        return "title: it is empty after cleaning; give it text"
    if any(unicodedata.category(character)[0] == "C" for character in item.item_id):
        return "item_id: it holds invisible characters; ids must be what they look like"
    if "" in cleaned.attributes:
        return "attributes: a name is empty after cleaning; give it text"
    if len(cleaned.attributes) < len(item.attributes):
        return "attributes: two names are the same after cleaning; keep one of them"
    return None


def _clean_attribute(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return clean_text(value, MAX_TITLE_CHARS)
    if isinstance(value, (tuple, list)):
        return [clean_text(part, MAX_TITLE_CHARS) for part in value]
    return value


def _base_claim(catalog: Catalog, item_id: str) -> BaseClaim | None:
    base = catalog.checkpoint_item(item_id)
    return BaseClaim(base.hash, base.sid) if base else None


def _draft(catalog: Catalog, one: _Checked, grounded: Grounded) -> ItemDraft:
    """The draft, the codes under its prefix told apart by whether an item of the checkpoint has them."""
    trained = catalog.trained_codes(grounded.prefix)
    taken = [code for code in grounded.last_codes if code in trained]
    free = [code for code in grounded.last_codes if code not in trained]
    base = _base_claim(catalog, one.item.item_id)
    return ItemDraft(one.item, one.hash, grounded.vector, grounded.prefix, tuple(free), tuple(taken), base)


def _foresee(catalog: Catalog, draft: ItemDraft) -> Claim:
    """What the log would most likely decide."""
    known = catalog.get(draft.item.item_id)
    if known and known.hash == draft.content_hash:
        return Claim("unchanged", known.sid)
    held = known.sid if known else catalog.last_sid(draft.item.item_id)
    keeps = held is not None and (draft.base is not None or held[:-1] == draft.prefix)
    sids: list[Sid] = [(*draft.prefix, code) for code in (*draft.free, *draft.taken)]
    sid = held if keeps and held is not None else min(sids, key=lambda sid: len(catalog.bucket(sid)))
    return Claim("updated" if known else "created", sid)


def _bucket_mate(catalog: Catalog, item_id: str, sid: Sid) -> str | None:
    """Who else has the SID."""
    return next((other for other in catalog.bucket(sid) if other != item_id), None)
