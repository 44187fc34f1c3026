"""TIGER as evaluation sees it: decoded by the same trie-constrained beam as the language models.

Shapes: U users, R live beams, n codes so far, S encoder tokens, K codes, D width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.beam import BeamModel, level_log_probs
from training.recommender import SidRecommender
from training.tiger import Tiger
from training.tiger_batches import padded


class TigerBeamModel:
    """A `BeamModel`: histories are encoded once, every beam's few codes are decoded anew at each level."""

    def __init__(self, tiger: Tiger, codes_BNL: Tensor, known_BN: Tensor) -> None:
        self._tiger = tiger
        self._hidden_USD, self._mask_US = tiger.encode(codes_BNL, known_BN)

    def first(self) -> Tensor:
        """Log-probabilities of the first code, float32 [U, K]."""
        user_U = torch.arange(len(self._mask_US))
        return self._log_probs(torch.zeros(len(user_U), 0, dtype=torch.int64), user_U)

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Log-probabilities of the next code, float32 [R, K]; parents need no bookkeeping here."""
        return self._log_probs(codes_Rn, user_R)

    def _log_probs(self, codes_Rn: Tensor, user_R: Tensor) -> Tensor:
        hidden_RnD = self._tiger.decode(codes_Rn, self._hidden_USD[user_R], self._mask_US[user_R])
        return level_log_probs(hidden_RnD[:, -1], self._tiger.level_head(codes_Rn.shape[1]))


class TigerRecommender(SidRecommender):
    """Ranks items by TIGER; arguments as of `BeamRecommender`."""

    def __init__(
        self,
        tiger: Tiger,
        codes_NL: NDArray[np.int64],
        popularity_N: NDArray[np.int64],
        *,
        max_items: int,
        beam_width: int,
    ) -> None:
        super().__init__(codes_NL, tiger.space.codes, popularity_N, beam_width=beam_width)
        self.tiger, self._codes_NL, self._max_items = tiger, codes_NL, max_items

    def beam_model(self, histories: Sequence[Sequence[int]]) -> BeamModel:
        """See `SidRecommender.beam_model`."""
        self.tiger.eval()
        return TigerBeamModel(self.tiger, *padded([h[-self._max_items :] for h in histories], self._codes_NL))
