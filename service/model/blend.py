"""Which trained item comes next: what the model says, what kept company with the history, and whose text is near it.

A language model over SIDs generalises; the items that others took together, and texts that are nearly the same, it
learns only roughly. Both are known exactly and cost no forward pass, so candidates of all three kinds are ranked by

    log p(i | h)     = model * log(p_model + f) + company * log(p_company + f) + text * log(p_text + f) + c
    p_company(i | h) = sum_k w_k s(h_k, i) / sum_k w_k sum_j s(h_k, j)         over the listed neighbours j of h_k
    p_text(i | h)    = sum_k w_k softmax_i(cos(e_k, e_i) / T)

with h_k the last trained items of the history, newest first, w_k falling, s the strength of a neighbour, f a floor.
Candidates are what the beam found and the neighbours of h_k. The weights are fitted on held-out events (conditional
logit), and c makes the sum over the candidates the share of events they reach, so that the result is a log-probability
like the beam's and merges with new items. It knows rows of trained items, not ids, and no engine.

Shapes: N trained items, Q neighbours of each, H history items (newest first), F items found, C candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.fitted_coefficients import BlendWeights as BlendWeights
from service.model.new_items import TrainedTexts

FLOOR = 1e-5
NONE = -1

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who keeps company with whom: rows int32 [N, Q] (`NONE` where there are fewer), how strongly, float32 [N, Q] >= 0.

    Strengths are what training found: coefficients of a model of the next item, or cosines of user sets.
    ``log_density_N`` float32 [N] is `TrainedTexts.log_density` of every item, at the weights' temperature.
    """

    neighbour_NQ: NDArray[np.int32]
    strength_NQ: NDArray[np.float32]
    log_density_N: NDArray[np.float32]

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored."""
        return {name: torch.from_numpy(np.ascontiguousarray(getattr(self, field))) for name, field in STORED.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Neighbours":
        """As they were stored."""
        return cls(**{field: tensors[name].numpy() for name, field in STORED.items()})


# strengths keep the name they had when all of them were cosines, so that older checkpoints are read
STORED = {"neighbour": "neighbour_NQ", "cosine": "strength_NQ", "log_density": "log_density_N"}


class Blend:
    """Ranks trained items for one user; ``embedding_NE`` float32 [N, E] are their unit embeddings."""

    def __init__(self, neighbours: Neighbours, embedding_NE: NDArray[np.float32], weights: BlendWeights) -> None:
        self.weights = weights
        self._neighbours, self._embedding_NE = neighbours, embedding_NE
        self._weight_3 = np.array([weights.model, weights.company, weights.text])

    def ranked(self, history_H: Rows, found_F: Rows, log_prob_F: Floats) -> tuple[Rows, Floats]:
        """The candidates, best first, and their log-probabilities; see `features` for the arguments.

        Of equal scores the model's favourite goes first, then the lower row.
        """
        row_C, feature_C3 = self.features(history_H, found_F, log_prob_F)
        score_C = feature_C3 @ self._weight_3
        score_C += np.log(self.weights.reach) - np.logaddexp.reduce(score_C)
        order_C = np.lexsort((-feature_C3[:, 0], -score_C))
        return row_C[order_C], score_C[order_C]

    def features(self, history_H: Rows, found_F: Rows, log_prob_F: Floats) -> tuple[Rows, Floats]:
        """Candidate rows ascending [C], and their three logarithms [C, 3].

        Args:
            history_H: rows of all trained items of the history, newest first.
            found_F: rows that the beam found, each once.
            log_prob_F: their log-probabilities.

        Neighbours that are in the history are no candidates unless the beam found them.
        """
        recent_K = history_H[: self.weights.history]
        near_KQ = self._neighbours.neighbour_NQ[recent_K].astype(np.int64)
        fresh = near_KQ[(near_KQ != NONE) & ~np.isin(near_KQ, history_H)]
        row_C = np.unique(np.concatenate([found_F, fresh]))
        model_C = np.zeros(len(row_C))
        model_C[np.searchsorted(row_C, found_F)] = np.exp(log_prob_F)
        falling_K = np.power(self.weights.decay, np.arange(len(recent_K), dtype=np.float64))
        weight_K = falling_K / max(float(falling_K.sum()), 1e-12)
        company_C = self._company(row_C, recent_K, near_KQ, weight_K)
        share_C3 = np.stack([model_C, company_C, self._text(row_C, recent_K, weight_K)], 1)
        return row_C, np.log(share_C3 + FLOOR)

    def shares(self, history_H: Rows, found_F: Rows, log_prob_F: Floats, row_P: Rows) -> tuple[Floats, Rows]:
        """What each part gives candidates ``row_P``: p_model, p_company, p_text, float64 [P, 3]; and their companions.

        A companion is the row of the history's item that speaks most for the candidate in p_company, int64 [P], `NONE`
        where nothing does. The other arguments are those of `features`.
        """
        row_C, feature_C3 = self.features(history_H, found_F, log_prob_F)
        share_P3 = np.maximum(np.exp(feature_C3[np.searchsorted(row_C, row_P)]) - FLOOR, 0.0)
        recent_K = history_H[: self.weights.history]
        weight_K = np.power(self.weights.decay, np.arange(len(recent_K), dtype=np.float64))
        strength_KQ = self._neighbours.strength_NQ[recent_K] * weight_K[:, None]
        near_KQ = self._neighbours.neighbour_NQ[recent_K]
        said_KP = np.zeros((len(recent_K), len(row_P)))
        for place, row in enumerate(row_P):
            said_KP[:, place] = (strength_KQ * (near_KQ == row)).sum(1)
        return share_P3, _loudest(recent_K, said_KP)

    def _company(self, row_C: Rows, recent_K: Rows, near_KQ: Rows, weight_K: Floats) -> Floats:
        strength_KQ = np.where(near_KQ != NONE, self._neighbours.strength_NQ[recent_K], 0.0) * weight_K[:, None]
        place_KQ = np.minimum(np.searchsorted(row_C, near_KQ), max(len(row_C) - 1, 0))
        company_C = np.zeros(len(row_C))
        if len(row_C):
            listed = row_C[place_KQ] == near_KQ
            np.add.at(company_C, place_KQ[listed], strength_KQ[listed])
        return company_C / max(float(strength_KQ.sum()), 1e-12)

    def _text(self, row_C: Rows, recent_K: Rows, weight_K: Floats) -> Floats:
        cosine_KC = self._embedding_NE[recent_K] @ self._embedding_NE[row_C].T / np.float32(self.weights.temperature)
        log_share_KC = cosine_KC - self._neighbours.log_density_N[recent_K][:, None]
        # an item is not its own neighbour
        share_KC = np.where(recent_K[:, None] == row_C[None], 0.0, np.exp(np.minimum(log_share_KC, 0.0)))
        return np.asarray(weight_K @ share_KC, np.float64)


def _loudest(recent_K: Rows, said_KP: Floats) -> Rows:
    if not len(recent_K):
        return np.full(said_KP.shape[1], NONE, np.int64)
    return np.where(said_KP.max(0) > 0, recent_K[said_KP.argmax(0)], NONE)


def log_densities(embedding_NE: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    """What `Neighbours.log_density_N` holds; always finite."""
    density_N = TrainedTexts(embedding_NE, temperature).log_density(embedding_NE)
    # -inf says that all others have the very same text: as if one of them were the only other
    return np.where(np.isneginf(density_N), np.float32(1.0 / temperature), density_N)
