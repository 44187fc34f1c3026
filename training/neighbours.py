"""Who keeps company with whom in training: each item's strongest companions, and how dense its texts lie.

A companion is what comes next (`transitions`), or whom the same users chose (cosines of user sets, the baseline
`CoOccurrence`). The strongest alone are kept, so that they travel with a checkpoint.

Shapes: U users, N items, Q neighbours, C items of a chunk, E embedding width.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from service.model.blend import NONE, Neighbours, log_densities
from training.baselines import used_items
from training.config import BlendRecipe
from training.progress import Reporter
from training.transitions import MAX_ITEMS, transitions

CHUNK = 1024

Strengths = NDArray[np.float32]


def neighbours_of(
    train: Mapping[str, Sequence[int]], embedding_NE: NDArray[np.float32], part: BlendRecipe, reporter: Reporter
) -> Neighbours:
    """The strongest companions of every item, best first; of equal ones the lower row. An item is none of its own."""
    items = len(embedding_NE)
    by_transitions = part.company == "transitions"
    if by_transitions and items > MAX_ITEMS:
        reporter.say(f"blend: {items} items are more than {MAX_ITEMS}, too many for transitions: co-occurrence instead")
        by_transitions = False
    chunks = _following(train, items, part) if by_transitions else _together(train, items)
    neighbour_NQ = np.full((items, part.neighbours), NONE, np.int32)
    strength_NQ = np.zeros((items, part.neighbours), np.float32)
    start = 0
    for strength_CN in chunks:
        rows = slice(start, start + len(strength_CN))
        own = np.arange(items)[None] == np.arange(rows.start, rows.stop)[:, None]
        near_CQ, found_CQ = _strongest(np.where(own, np.float32(0), strength_CN), part.neighbours)
        neighbour_NQ[rows, : near_CQ.shape[1]], strength_NQ[rows, : near_CQ.shape[1]] = near_CQ, found_CQ
        start = rows.stop
    return Neighbours(neighbour_NQ, strength_NQ, log_densities(embedding_NE, part.temperature))


def _following(train: Mapping[str, Sequence[int]], items: int, part: BlendRecipe) -> Iterator[Strengths]:
    yield transitions(train, items, decay=part.decay, ridge=part.ridge)


def _together(train: Mapping[str, Sequence[int]], items: int) -> Iterator[Strengths]:
    used_UN = used_items(train, items)
    norm_N = np.sqrt(np.maximum(used_UN.getnnz(0), 1.0))
    scaled_UN = (used_UN @ sparse.diags(1.0 / norm_N)).tocsc()
    for start in range(0, items, CHUNK):
        yield (scaled_UN[:, start : start + CHUNK].T @ scaled_UN).toarray().astype(np.float32)


def _strongest(strength_CN: Strengths, count: int) -> tuple[NDArray[np.int32], Strengths]:
    """Columns and strengths [C, Q] of the largest above zero; `NONE` and 0 where there are fewer."""
    order_CQ = np.argsort(-strength_CN, axis=1, kind="stable")[:, :count]
    strength_CQ: Strengths = np.take_along_axis(strength_CN, order_CQ, 1)
    return np.where(strength_CQ > 0, order_CQ, NONE).astype(np.int32), np.maximum(strength_CQ, 0.0)
