"""Who keeps company with whom in training: each item's nearest by the cosine of user sets, and how dense its texts lie.

The same cosines as the baseline `CoOccurrence`, kept for the nearest only, so that they travel with a checkpoint.

Shapes: U users, N items, Q neighbours, E embedding width.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from service.model.blend import NONE, Neighbours, log_densities
from training.baselines import used_items

CHUNK = 1024


def neighbours_of(
    train: Mapping[str, Sequence[int]], embedding_NE: NDArray[np.float32], count: int, temperature: float
) -> Neighbours:
    """The ``count`` nearest of every item, best first; equal cosines go to the lower row."""
    used_UN = used_items(train, len(embedding_NE))
    norm_N = np.sqrt(np.maximum(used_UN.getnnz(0), 1.0))
    scaled_UN = (used_UN @ sparse.diags(1.0 / norm_N)).tocsc()
    neighbour_NQ = np.full((len(embedding_NE), count), NONE, np.int32)
    cosine_NQ = np.zeros((len(embedding_NE), count), np.float32)
    for start in range(0, len(embedding_NE), CHUNK):
        together = (scaled_UN[:, start : start + CHUNK].T @ scaled_UN).tocsr()
        for row in range(together.shape[0]):
            part = slice(together.indptr[row], together.indptr[row + 1])
            near, cosine = _nearest(together.indices[part], together.data[part], start + row, count)
            neighbour_NQ[start + row, : len(near)] = near
            cosine_NQ[start + row, : len(near)] = cosine
    return Neighbours(neighbour_NQ, cosine_NQ, log_densities(embedding_NE, temperature))


def _nearest(
    column: NDArray[np.int32], cosine: NDArray[np.float64], own: int, count: int
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    others = column != own
    column, cosine = column[others], cosine[others]
    order = np.lexsort((column, -cosine))[:count]
    return column[order], cosine[order]
