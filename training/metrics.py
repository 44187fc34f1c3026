"""Recall and NDCG of ranked item lists against one held-out item per user.

A hit is the item itself, never merely its SID. Everything starts from ranks, so that intervals and comparisons resample
users without ranking again. It knows nothing of models.

Shapes: U users.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MISSED = -1


def target_ranks(recommended: Sequence[Sequence[int]], targets: Sequence[int]) -> NDArray[np.int64]:
    """0-based place of each user's target in their list, `MISSED` where it is absent; int64 [U]."""
    ranks = [
        list(items).index(target) if target in items else MISSED
        for items, target in zip(recommended, targets, strict=True)
    ]
    return np.array(ranks, np.int64)


def hits(rank_U: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """1 where the target is among the first ``k``, else 0; its mean is Recall@k."""
    hit_U: NDArray[np.float64] = ((rank_U != MISSED) & (rank_U < k)).astype(np.float64)
    return hit_U


def gains(rank_U: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """1 / log2(rank + 2) where the target is among the first ``k``, else 0; its mean is NDCG@k."""
    gain_U: NDArray[np.float64] = hits(rank_U, k) / np.log2(np.maximum(rank_U, 0) + 2)
    return gain_U


def summary(rank_U: NDArray[np.int64], ks: Sequence[int]) -> dict[str, float]:
    """``recall@k`` and ``ndcg@k`` for every k."""
    if not len(rank_U):
        raise ValueError("no examples to measure on")
    made = {}
    for k in ks:
        made[f"recall@{k}"] = float(hits(rank_U, k).mean())
        made[f"ndcg@{k}"] = float(gains(rank_U, k).mean())
    return made
