"""The model's places blended with what kept company with the history and whose text is near it, by item ids.

It knows the trained items only; which of them may be returned is the caller's business.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from service.model.blend import Blend


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
        known = [(row, score) for item_id, score in found if (row := self._row.get(item_id)) is not None]
        recent = [row for item_id in reversed(history) if (row := self._row.get(item_id)) is not None]
        rows, scores = self._blend.ranked(
            np.array(recent, np.int64), np.array([row for row, _ in known], np.int64), np.array([s for _, s in known])
        )
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            yield self._item_ids[row], score
