"""The second way into an answer: every item newer than the model, scored for one user, best first.

Follows the catalogue step by step and keeps what `service.model.new_items` needs of each new item. Searching takes a
few milliseconds for ten thousand new items and happens where the request is; the rows of what a step brings are made
on another thread. It may be one step ahead of the catalogue that a request pinned, and knows items by their ids only:
which may be returned is the caller's business.

Shapes: N trained items, M new items, H history items, E embedding width.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.catalog import CatalogStep
from service.model.new_items import NewItemDial, NewItemTable, TrainedTexts, new_item_log_probs
from service.vectors import unpack

CACHED_DENSITIES = 100_000

Embedding = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Known:
    """The new items of one moment: ids in the order of the table's rows, and the row of each."""

    item_ids: tuple[str, ...]
    row: Mapping[str, int]
    table: NewItemTable


class NewItems:
    """Knows the trained items' ids and unit embeddings float32 [N, E]; starts without new items."""

    def __init__(self, item_ids: Sequence[str], embedding_NE: NDArray[np.float32], dial: NewItemDial) -> None:
        self._dial = dial
        self._row = {item_id: row for row, item_id in enumerate(item_ids)}
        self._embedding_NE = embedding_NE
        self._texts = TrainedTexts(embedding_NE, dial.temperature)
        self._density: OrderedDict[str, float] = OrderedDict()
        self._known = _Known((), {}, self._texts.table(embedding_NE[:0]))

    def __len__(self) -> int:
        return len(self._known.item_ids)

    async def follow(self, step: CatalogStep) -> None:
        """Take what a step of the catalogue brings and takes away."""
        gone = [change.before.item.item_id for change in step.changes if change.before and change.before.is_new]
        came = [change.after for change in step.changes if change.after and change.after.is_new]
        vectors = {item.item.item_id: item.entry.vector for item in came if item.entry and item.entry.vector}
        if gone or vectors:
            await asyncio.to_thread(lambda: self.change({i: unpack(vector) for i, vector in vectors.items()}, gone))

    def change(self, embeddings: Mapping[str, Embedding], gone: Iterable[str] = ()) -> None:
        """Take new items, or new texts of them, in, and others out; searches see all of it or nothing."""
        known = self._known
        leaving = set(gone) | set(embeddings)
        kept = np.array([row for row, item_id in enumerate(known.item_ids) if item_id not in leaving], np.int64)
        width = self._embedding_NE.shape[1]
        added_ME = np.array(list(embeddings.values()), np.float32).reshape(-1, width)
        table = known.table.with_rows(kept, self._texts.table(added_ME))
        item_ids = (*(known.item_ids[row] for row in kept), *embeddings)
        self._known = _Known(item_ids, {item_id: row for row, item_id in enumerate(item_ids)}, table)

    def scored(self, history: Sequence[str], found: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
        """New items with their log-probabilities, best first; nothing for a history without a known item.

        Args:
            history: the user's items, oldest first.
            found: what the beam found: trained items and their log-probabilities.
        """
        known = self._known
        recent = [item_id for item_id in reversed(history) if item_id in self._row or item_id in known.row]
        recent = recent[: self._dial.history]
        if not recent or not known.item_ids:
            return
        history_HE = np.stack([self._embedding(item_id, known) for item_id in recent])
        density_H = self._densities(recent, history_HE)
        score_M = new_item_log_probs(known.table, history_HE, density_H, self._shares(found), self._dial)
        for row in np.argsort(-score_M, kind="stable").tolist():
            yield known.item_ids[row], float(score_M[row])

    def _embedding(self, item_id: str, known: _Known) -> Embedding:
        row = self._row.get(item_id)
        found: Embedding = known.table.embedding_ME[known.row[item_id]] if row is None else self._embedding_NE[row]
        return found

    def _densities(self, item_ids: Sequence[str], history_HE: NDArray[np.float32]) -> NDArray[np.float32]:
        """The history's log densities; those of trained items are kept, because their texts stand still."""
        missing = [place for place, item_id in enumerate(item_ids) if item_id not in self._density]
        fresh = dict(zip(missing, self._texts.log_density(history_HE[missing]).tolist(), strict=True))
        densities = [fresh[place] if place in fresh else self._density[i] for place, i in enumerate(item_ids)]
        for item_id, density in zip(item_ids, densities, strict=True):
            if item_id in self._row:
                self._density[item_id] = density
                self._density.move_to_end(item_id)
        while len(self._density) > CACHED_DENSITIES:
            self._density.popitem(last=False)
        return np.array(densities, np.float32)

    def _shares(self, found: Iterable[tuple[str, float]]) -> NDArray[np.float32]:
        share_N = np.zeros(len(self._row), np.float32)
        for item_id, score in found:
            row = self._row.get(item_id)
            if row is not None:
                share_N[row] = np.exp(score)
        return share_N
