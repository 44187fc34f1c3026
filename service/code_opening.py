"""The use case of opening codes: look at the posted items, propose, write to the log, move the items that gain by it.

The opener appends an entry for each code, waits until this replica serves with it, and then gives every posted item
whose nearest codes now lead through an open code a SID there, again by entries of the log, in steps that change only
what nobody changed meanwhile. Each part can be repeated: an opener that dies between them is completed by the next run.
Items of the checkpoint keep their SIDs, which the model learned. How the vectors were chosen is `codebook_growth`'s.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import structlog
import torch

from service.catalog import Catalog, CatalogItem
from service.errors import ConflictError, RequestError
from service.grounder import Embedding, Grounder
from service.ingest import PublishedCatalog
from service.model.codebook_growth import Proposal, propose_codes, usual_shares
from service.model.quantizer import OpenedCode, ResidualQuantizer
from service.model.semantic_ids import Sid
from service.opened_codes import OpenedCodes, code_entry
from service.stores.item_log import ItemLog, Restoration, code_name
from service.vectors import unpack

AT_ONCE = 100
VISIBLE_SECONDS = 10.0
LEASE_SECONDS = 30
SHOWN_TITLES = 5
LOOKED_AT = 20_000  # of the newest items


@dataclass(frozen=True, slots=True)
class ProposedCode:
    """A code that is, or would be, opened: where, for how many items, what it leaves unexplained, some titles."""

    level: int
    code: int
    items: int
    left_before: float
    left_after: float
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeReport:
    """What a run found and did; ``free`` is how many spare codes each level has left behind it."""

    dry_run: bool
    codes: tuple[ProposedCode, ...]
    moved: int
    free: tuple[int, ...]
    catalog_version: int


@dataclass(frozen=True, slots=True)
class _Look:
    """What a run looks at: a version of the catalogue, its newest posted items and their embeddings [M, E]."""

    catalog: Catalog
    items: tuple[CatalogItem, ...]
    embedding_ME: Embedding


class CodeOpening:
    """Opens codes of one log.

    Args:
        catalogs: the newest catalogue and the log that it follows.
        grounder: with the quantiser as it is at the moment.
        log: where openings are written.
        codes: what is open.
        embedding_NE: of the checkpoint's own items, which say what is usual.
        min_items: how many items must share a new code, >= 2.
    """

    def __init__(
        self,
        catalogs: PublishedCatalog,
        grounder: Grounder,
        log: ItemLog,
        codes: OpenedCodes,
        embedding_NE: Embedding,
        min_items: int,
    ) -> None:
        self._catalogs, self._grounder, self._log, self._codes = catalogs, grounder, log, codes
        self._embedding_NE, self._min_items = embedding_NE, min_items
        self._usual: tuple[float, ...] | None = None

    async def run(self, *, dry_run: bool = False) -> CodeReport:
        """Open what is worth opening and move the items.

        Raises:
            ConflictError: another replica is opening codes.
            StorageError: the log did not acknowledge; running it again completes it.
        """
        if not dry_run and not await self._log.lease("open-codes", LEASE_SECONDS):
            raise ConflictError("codes are being opened, or were a moment ago; try again in half a minute")
        look = await self._grounder.run(self._look)
        proposals = await self._grounder.run(lambda: self._propose(look))
        named = self._named(proposals)
        if not dry_run:
            await self._open(look.catalog, named)
        moved = 0 if dry_run else await self._move()
        codes = tuple(_shown(look, code.code, proposal) for code, proposal in named)
        free = tuple(map(len, self._codes.free()))
        if codes and not dry_run:
            structlog.get_logger().info("codes_opened", codes=len(codes), moved=moved)
        return CodeReport(dry_run, codes, moved, free, self._catalogs.current.version)

    async def keep(self, seconds: float) -> None:
        """Run again and again; what goes wrong waits for the next time."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.run()
            except RequestError as error:
                structlog.get_logger().warning("codes_not_opened", fault=error.detail)

    def _look(self) -> _Look:
        catalog, items = self._catalogs.current, []
        for item in catalog.newest():
            if item.entry and item.entry.vector:
                items.append(item)
            if len(items) == LOOKED_AT:
                break
        width = self._embedding_NE.shape[1]
        vectors = [unpack(item.entry.vector) for item in items if item.entry]
        return _Look(catalog, tuple(items), np.array(vectors, np.float32).reshape(-1, width))

    def _propose(self, look: _Look) -> list[Proposal]:
        quantizer = self._grounder.quantizer
        self._usual = self._usual or usual_shares(quantizer.with_opened([]), self._embedding_NE)
        spare = [len(codes) for codes in self._codes.free()]
        return propose_codes(quantizer, look.embedding_ME, self._usual, spare, self._min_items)

    def _named(self, proposals: Sequence[Proposal]) -> list[tuple[OpenedCode, Proposal]]:
        free = self._codes.free()
        return [(OpenedCode(each.level, free[each.level].pop(0), each.centroid_D), each) for each in proposals]

    async def _open(self, catalog: Catalog, named: Sequence[tuple[OpenedCode, Proposal]]) -> None:
        changes = []
        for code, _ in named:
            word = catalog.word_on(code_name(code.level, code.code))
            changes.append(Restoration(code_entry(code), word.version if word else 0))
        await self._append(changes)

    async def _move(self) -> int:
        """Give every posted item that is nearest to an open code a SID under it; how many moved."""
        look = await self._grounder.run(self._look)
        changes = await self._grounder.run(lambda: _moves(look, self._grounder.quantizer))
        return await self._append(changes)

    async def _append(self, changes: Sequence[Restoration]) -> int:
        """Write in steps and wait until they show; how many were not overtaken by another change."""
        written, version = 0, 0
        for first in range(0, len(changes), AT_ONCE):
            claims = await self._log.append(self._catalogs.generation, changes[first : first + AT_ONCE])
            versions = [claim.version for claim in claims if claim.version is not None]
            written, version = written + len(versions), max([version, *versions])
        if version:
            try:
                async with asyncio.timeout(VISIBLE_SECONDS):
                    await self._catalogs.wait_for(version)
            except TimeoutError:
                structlog.get_logger().warning("codes_open_late", version=version)
        return written


def _moves(look: _Look, quantizer: ResidualQuantizer) -> list[Restoration]:
    """The items whose codes should lead through an open code and do not, each with its new SID."""
    if not quantizer.opened or not look.items:
        return []
    embedding_ME = torch.from_numpy(look.embedding_ME)
    codes_ML = quantizer.encode(embedding_ME)
    order_MK = torch.sort(quantizer.last_level_distances(embedding_ME, codes_ML), dim=1, stable=True).indices
    opened = {(code.level, code.code) for code in quantizer.opened}
    taken: Counter[Sid] = Counter()
    moves = []
    for row, item in enumerate(look.items):
        prefix: Sid = tuple(codes_ML[row, :-1].tolist())
        if item.sid[:-1] == prefix or not opened & set(enumerate(prefix)) or item.entry is None:
            continue
        sids: list[Sid] = [(*prefix, code) for code in order_MK[row].tolist()]
        sid = min(sids, key=lambda sid: len(look.catalog.bucket(sid)) + taken[sid])
        taken[sid] += 1
        moves.append(Restoration(replace(item.entry, sid=sid), item.entry.version))
    return moves


def _shown(look: _Look, code: int, proposal: Proposal) -> ProposedCode:
    titles = tuple(look.items[member].item.title for member in proposal.members[:SHOWN_TITLES])
    shares = round(proposal.left_before, 4), round(proposal.left_after, 4)
    return ProposedCode(proposal.level, code, len(proposal.members), *shares, titles)
