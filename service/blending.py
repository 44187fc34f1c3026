"""The model's places blended with what kept company with the history and whose text is near it, by item ids.

It knows the trained items only; which of them may be returned is the caller's business.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from service.model.blend import NONE, Blend
from service.recommendation import BlendShares


class Blending:
    """``item_ids`` are the trained items in the order of the blend's rows."""

    def __init__(self, item_ids: Sequence[str], blend: Blend) -> None:
        self._item_ids, self._blend = tuple(item_ids), blend
        self._row = {item_id: row for row, item_id in enumerate(self._item_ids)}

    def scored(self, history: Sequence[str], found: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
        """Trained items with their log-probabilities, best first: all that were found, and neighbours of the history.

        Args:
            history: the user's items, oldest first.
            found: what the beam found: trained items and their log-probabilities.
        """
        rows, scores = self._blend.ranked(*self._inputs(history, found))
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            yield self._item_ids[row], score

    def shares(
        self, history: Sequence[str], found: Iterable[tuple[str, float]], item_ids: Sequence[str]
    ) -> Iterator[BlendShares]:
        """What each part of the blend gives each of ``item_ids``, which `scored` gave for the same arguments."""
        row_P = np.array([self._row[item_id] for item_id in item_ids], np.int64)
        share_P3, companion_P = self._blend.shares(*self._inputs(history, found), row_P)
        for (model, company, text), companion in zip(share_P3.tolist(), companion_P.tolist(), strict=True):
            yield BlendShares(model, company, text, None if companion == NONE else self._item_ids[companion])

    def _inputs(
        self, history: Sequence[str], found: Iterable[tuple[str, float]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        known = [(row, score) for item_id, score in found if (row := self._row.get(item_id)) is not None]
        recent = [row for item_id in reversed(history) if (row := self._row.get(item_id)) is not None]
        return (
            np.array(recent, np.int64),
            np.array([row for row, _ in known], np.int64),
            np.array([score for _, score in known], np.float64),
        )
