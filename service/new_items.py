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
from immutables import Map
from numpy.typing import NDArray

from service.catalog import CatalogStep
from service.model.new_items import NewItemDial, NewItemTable, TrainedTexts, new_item_log_probs, telling
from service.new_item_rows import NewItemRows
from service.vectors import unpack

CACHED_DENSITIES = 100_000
SORTED_FIRST = 512

Embedding = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Known:
    """The new items of one moment: the row of each, how many rows there were, and which of them still stand [M]."""

    rows: NewItemRows
    row: Map[str, int]
    table: NewItemTable
    stands_M: NDArray[np.bool_]


class NewItems:
    """Knows the trained items' ids and unit embeddings float32 [N, E]; starts without new items."""

    def __init__(self, item_ids: Sequence[str], embedding_NE: NDArray[np.float32], dial: NewItemDial) -> None:
        self._dial = dial
        self._row = {item_id: row for row, item_id in enumerate(item_ids)}
        self._embedding_NE = embedding_NE
        self._texts = TrainedTexts(embedding_NE, dial.temperature)
        self._density: OrderedDict[int, float] = OrderedDict()
        self._known = self._fresh((), self._texts.table(embedding_NE[:0]))

    def __len__(self) -> int:
        return len(self._known.row)

    async def follow(self, step: CatalogStep) -> None:
        """Take what a step of the catalogue brings and takes away."""
        gone = [change.before.item.item_id for change in step.changes if change.before and change.before.is_new]
        came = [change.after for change in step.changes if change.after and change.after.is_new]
        vectors = {item.item.item_id: item.entry.vector for item in came if item.entry and item.entry.vector}
        if gone or vectors:
            await asyncio.to_thread(lambda: self.change({i: unpack(vector) for i, vector in vectors.items()}, gone))

    def change(self, embeddings: Mapping[str, Embedding], gone: Iterable[str] = ()) -> None:
        """Take new items, or new texts of them, in, and others out; searches see all of it or nothing."""
        known = self._known if len(self) >= len(self._known.stands_M) // 2 else self._compacted()
        rows, first = known.rows, len(known.rows)
        width = self._embedding_NE.shape[1]
        added_ME = np.array(list(embeddings.values()), np.float32).reshape(-1, width)
        rows.append(list(embeddings), self._texts.table(added_ME))
        stands_M = np.zeros(len(rows), np.bool_)  # rows of a change that failed halfway stand nowhere
        stands_M[: len(known.stands_M)] = known.stands_M
        stands_M[first:] = True
        with known.row.mutate() as row:
            for item_id in {*gone, *embeddings}:
                if (old := row.pop(item_id, None)) is not None:
                    stands_M[old] = False
            for place, item_id in enumerate(embeddings, first):
                row[item_id] = place
            self._known = _Known(rows, row.finish(), rows.table(len(rows)), stands_M)

    def _fresh(self, item_ids: Sequence[str], table: NewItemTable) -> _Known:
        rows = NewItemRows(item_ids, table)
        row = Map({item_id: place for place, item_id in enumerate(item_ids)})
        return _Known(rows, row, table, np.ones(len(rows), np.bool_))

    def _compacted(self) -> _Known:
        """Rows of its own for what still stands, so that what went does not pile up."""
        known = self._known
        kept = np.flatnonzero(known.stands_M)
        table = NewItemTable(*(getattr(known.table, name)[kept] for name in NewItemTable.__slots__))
        return self._fresh([known.rows.item_ids[row] for row in kept], table)

    def scored(self, history: Sequence[str], found: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
        """New items with their log-probabilities, best first; nothing for a history without a known item.

        Args:
            history: the user's items, oldest first.
            found: what the beam found: trained items and their log-probabilities.
        """
        known = self._known
        recent = self._telling(history, known)[: self._dial.history]
        if not recent or not known.row:
            return
        history_HE, density_H = self._embedding_NE[recent], self._densities(recent)
        score_M = new_item_log_probs(known.table, history_HE, density_H, self._shares(found), self._dial)
        score_M[~known.stands_M] = -np.inf
        for row in _best_first(score_M, len(known.row)):
            yield known.rows.item_ids[row], float(score_M[row])

    def _telling(self, history: Sequence[str], known: _Known) -> list[int]:
        """The trained rows whose texts count, newest first."""
        met = [item_id for item_id in reversed(history) if item_id in self._row or item_id in known.row]
        return telling(met, self._row.get, lambda item_id: int(known.table.neighbour_MQ[known.row[item_id], 0]))

    def _densities(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """The log densities of trained rows; they are kept, because their texts stand still."""
        missing = [row for row in dict.fromkeys(rows) if row not in self._density]
        fresh = dict(zip(missing, self._texts.log_density(self._embedding_NE[missing]).tolist(), strict=True))
        densities = [fresh[row] if row in fresh else self._density[row] for row in rows]
        for row, density in zip(rows, densities, strict=True):
            self._density[row] = density
            self._density.move_to_end(row)
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


def _best_first(score_M: NDArray[np.float32], count: int) -> Iterator[int]:
    """The rows of the ``count`` highest scores, equal ones in order; the rest is sorted if anybody reads so far."""
    first = min(SORTED_FIRST, count)
    least = np.partition(score_M, len(score_M) - first)[len(score_M) - first]
    leading = np.flatnonzero(score_M >= least)
    yield from leading[np.argsort(-score_M[leading], kind="stable")].tolist()
    if len(leading) < count:
        yield from np.argsort(-score_M, kind="stable")[len(leading) : count].tolist()
