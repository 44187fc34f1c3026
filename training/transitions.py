"""Which item follows which: a linear model of the next item, in closed form (SLIT; Choi et al. 2021, arXiv 2103.16104).

    B = (S'S + ridge * m * I)^-1 S'T

Row p of S holds the items before a step of a sequence, each step back counting `decay` as much; T has the item at that
step; m is the mean of S'S's diagonal, so that one ridge fits data of any size. Scores after a history are its row of S
times B. Unlike cosines of user sets it knows what comes after what, and shares out what several items explain together.
It solves an N x N system, in memory for catalogues of up to `MAX_ITEMS`.

Shapes: P steps of all sequences, N items, E entries of S.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
from numpy.typing import NDArray

HORIZON = 50
MAX_ITEMS = 20_000


def transitions(
    train: Mapping[str, Sequence[int]], num_items: int, *, decay: float, ridge: float
) -> NDArray[np.float32]:
    """B, float32 [N, N]: row i says how much item i speaks for each next one, or against it; zeros where nobody used i.

    Raises:
        ValueError: no sequence has two items.
    """
    before_PN, after_PN = _steps(train, num_items, decay)
    gram_NN = (before_PN.T @ before_PN).toarray()
    gram_NN[np.diag_indices(num_items)] += ridge * float(np.diag(gram_NN).mean())
    follows_NN = (before_PN.T @ after_PN).toarray()
    solved: NDArray[np.float32] = scipy.linalg.solve(
        gram_NN, follows_NN, assume_a="pos", overwrite_a=True, overwrite_b=True, check_finite=False
    )
    return solved


def _steps(
    train: Mapping[str, Sequence[int]], num_items: int, decay: float
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """S and T; items further back than `HORIZON` are left out."""
    sequences = [np.array(train[user], np.int64) for user in sorted(train) if len(train[user]) > 1]
    if not sequences:
        raise ValueError("no sequence has two items: nothing follows anything")
    next_P = np.concatenate([sequence[1:] for sequence in sequences])
    starts = np.cumsum([0, *(len(sequence) - 1 for sequence in sequences[:-1])])
    step_E, item_E, weight_E = [], [], []
    for start, sequence in zip(starts, sequences, strict=True):
        for distance in range(1, min(HORIZON, len(sequence) - 1) + 1):
            step_E.append(np.arange(start + distance - 1, start + len(sequence) - 1))
            item_E.append(sequence[:-distance])
            weight_E.append(np.full(len(sequence) - distance, decay ** (distance - 1)))
    shape = (len(next_P), num_items)
    before = (np.concatenate(weight_E), (np.concatenate(step_E), np.concatenate(item_E)))
    after = (np.ones(len(next_P)), (np.arange(len(next_P)), next_P))
    return sparse.csr_matrix(before, shape, np.float32), sparse.csr_matrix(after, shape, np.float32)
