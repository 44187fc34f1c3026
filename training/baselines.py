"""Simple recommenders that ours must beat: popularity, co-occurrence (item-kNN on interactions), transitions, text-kNN.

Each scores every item for a user's history; ranking and the removal of seen items are the same for all. They learn from
training sequences only.

Shapes: U users, N items, E embedding width.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from training.config import BlendRecipe
from training.data import Example
from training.transitions import transitions

RECENT_ITEMS = 5
DECAY = 0.8


class Scorer(Protocol):
    """Scores all items after a history."""

    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """One number per item, higher is better, float64 [N]."""
        ...


class Popularity:
    """Everybody gets what most have used."""

    def __init__(self, popularity_N: NDArray[np.int64]) -> None:
        self._score_N = popularity_N.astype(np.float64)

    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """The same for every history."""
        return self._score_N


class CoOccurrence:
    """Items used by the same users as the history's most recent items: cosine of user sets, older items count less."""

    def __init__(self, train: Mapping[str, Sequence[int]], num_items: int) -> None:
        used_UN = used_items(train, num_items)
        together = (used_UN.T @ used_UN).toarray()
        norm_N = np.sqrt(np.maximum(np.diag(together), 1.0))
        np.fill_diagonal(together, 0.0)
        self._cosine_NN = together / norm_N[:, None] / norm_N[None]

    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """Cosines to the last items, each step back counting `DECAY` as much."""
        recent = list(history[-RECENT_ITEMS:])[::-1]
        weight = DECAY ** np.arange(len(recent))
        total: NDArray[np.float64] = weight @ self._cosine_NN[recent]
        return total


def used_items(train: Mapping[str, Sequence[int]], num_items: int) -> sparse.csr_matrix:
    """Which users, in the order of their names, used which items: 1 or nothing, [U, N]."""
    users = sorted(train)
    row = np.repeat(np.arange(len(users)), [len(train[user]) for user in users])
    column = np.concatenate([np.array(train[user], np.int64) for user in users])
    used_UN = sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(users), num_items))
    used_UN.data[:] = 1.0
    return used_UN


class Transitions:
    """The linear model of the next item that the blend's neighbours come from (`training.transitions`), whole."""

    def __init__(self, train: Mapping[str, Sequence[int]], num_items: int, part: BlendRecipe) -> None:
        self._strength_NN = transitions(train, num_items, decay=part.decay, ridge=part.ridge)
        self._history, self._decay = part.history, part.decay

    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """What the last items say, each step back counting less."""
        recent = list(history[-self._history :])[::-1]
        total: NDArray[np.float64] = self._decay ** np.arange(len(recent)) @ self._strength_NN[recent]
        return total


class TextNeighbours:
    """Items whose text is nearest to the last item's."""

    def __init__(self, embedding_NE: NDArray[np.float32]) -> None:
        self._embedding_NE = embedding_NE

    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """Cosines to the last item."""
        cosine_N: NDArray[np.float64] = (self._embedding_NE @ self._embedding_NE[history[-1]]).astype(np.float64)
        return cosine_N


def rank(scorer: Scorer, examples: Sequence[Example], *, length: int, exclude_seen: bool) -> list[list[int]]:
    """The best ``length`` items of each example; equal scores go to the lower item number."""
    return [_top(scorer.scores(example.history), example, length, exclude_seen) for example in examples]


def _top(score_N: NDArray[np.float64], example: Example, length: int, exclude_seen: bool) -> list[int]:
    order = np.argsort(-score_N, kind="stable")
    if exclude_seen:
        order = order[~np.isin(order, example.history)]
    return [int(item) for item in order[:length]]
