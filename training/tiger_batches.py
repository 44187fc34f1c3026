"""Batches for TIGER: a history and the item after it, drawn from all events of the training sequences.

Shapes: B examples, N items of the longest history, L levels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TigerBatch:
    """Codes int64 [B, N, L] of right-padded histories, which items are real (bool [B, N]), the next codes [B, L]."""

    codes_BNL: Tensor
    known_BN: Tensor
    next_BL: Tensor


class EventSampler:
    """Draws events that have a history.

    Raises:
        ValueError: no sequence has two items.
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[int]],
        codes_NL: NDArray[np.int64],
        *,
        max_items: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self._sequences = [sequences[user] for user in sorted(sequences) if len(sequences[user]) > 1]
        if not self._sequences:
            raise ValueError("no training sequence has two items, so there is no next item to learn")
        self._events = np.array([(u, n) for u, items in enumerate(self._sequences) for n in range(1, len(items))])
        self._codes_NL, self._max_items, self._batch_size = codes_NL, max_items, batch_size
        self._random = np.random.default_rng(seed)

    def draw(self) -> TigerBatch:
        """The next batch, with replacement."""
        drawn = self._events[self._random.integers(0, len(self._events), self._batch_size)]
        histories = [self._sequences[user][max(0, place - self._max_items) : place] for user, place in drawn]
        codes_BNL, known_BN = padded(histories, self._codes_NL)
        target_B = [self._sequences[user][place] for user, place in drawn]
        return TigerBatch(codes_BNL, known_BN, torch.from_numpy(self._codes_NL[target_B]))


def padded(histories: Sequence[Sequence[int]], codes_NL: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Codes int64 [B, N, L] of histories, padded on the right, and which items are real, bool [B, N]."""
    longest = max(1, *(len(history) for history in histories))
    item_BN = np.zeros((len(histories), longest), np.int64)
    known_BN = np.zeros((len(histories), longest), bool)
    for row, history in enumerate(histories):
        item_BN[row, : len(history)] = history
        known_BN[row, : len(history)] = True
    return torch.from_numpy(codes_NL[item_BN]), torch.from_numpy(known_BN)
