"""How likely a user's next item is one that the model never met: from texts, and from what the beam found.

A fine-tuned model has learned that codes it never saw never occur, and similarity smoothing inside the beam
(`smoothing`) only reaches new items whose prefix the beam visits. New items are few, so here all of them are scored
for a user, from two probabilities that need no forward pass:

    p_text(i | h)  = sum_k w_k softmax_i(cos(h_k, .) / T)    over the last trained items h_k, newest first, w_k falling
    p_model(i | h) = sum_j v_ij p(j | h)                     over the trained items j nearest to i that the beam found

    log p(i | h)   = bias + text * log p_text + model * log(p_model + floor) - penalty_i

The coefficients are fitted on items held out of training, so that the result is a log-probability and merges with the
beam's list. ``penalty`` takes back what an item gains by resembling everything (stuffed or injected text): none may
expect a larger share of p_text than the trained item at the 99th percentile. It knows no item ids, no engine.

Shapes: N trained items, M new items, H history items (newest first), E embedding width, Q neighbours, R references.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.fitted_coefficients import NewItemDial as NewItemDial

NEIGHBOURS = 20
MAX_REFERENCES = 50_000
HUB_SAMPLE = 2_000
HUB_PERCENTILE = 99.0
FLOOR = 1e-6
_SAME = 1.0 - 1e-5
_CHUNK = 256

Floats = NDArray[np.float32]
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class NewItemTable:
    """Per new item: unit embedding [M, E], nearest trained rows and their weights [M, Q], penalty [M]."""

    embedding_ME: Floats
    neighbour_MQ: NDArray[np.int64]
    weight_MQ: Floats
    penalty_M: Floats

    def __len__(self) -> int:
        return len(self.embedding_ME)


class TrainedTexts:
    """The trained items' unit embeddings float32 [N, E], and what a text looks like among them."""

    def __init__(self, embedding_NE: Floats, temperature: float) -> None:
        self._embedding_NE = embedding_NE
        self._temperature = temperature
        random, items = np.random.default_rng(0), len(embedding_NE)
        # a fixed sample bounds the cost of a density on catalogues of millions
        size = min(items, MAX_REFERENCES)
        self._reference_RE = embedding_NE if size == items else embedding_NE[random.choice(items, size, replace=False)]
        self._log_scale = float(np.log(max(items, 1) / max(size, 1)))
        self._hub_RE = embedding_NE[random.choice(items, min(HUB_SAMPLE, items), replace=False)]
        self._hub_density_R = self.log_density(self._hub_RE)
        shares = self._text_shares(self._hub_RE)
        self._largest_share = float(np.percentile(shares, HUB_PERCENTILE)) if len(shares) else np.inf

    def log_density(self, vector_HE: Floats) -> Floats:
        """Log of sum_j exp(cos(h, j) / T) over the trained items other than h itself, float32 [H]."""
        parts = [self._log_density(vector_HE[n : n + _CHUNK]) for n in range(0, len(vector_HE), _CHUNK)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def table(self, embedding_ME: Floats) -> NewItemTable:
        """What the scores need of new items."""
        starts = range(0, max(len(embedding_ME), 1), _CHUNK)
        parts = [self._rows(embedding_ME[n : n + _CHUNK]) for n in starts]
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in NewItemTable.__slots__)
        return NewItemTable(*columns)

    def _rows(self, embedding_ME: Floats) -> NewItemTable:
        cosine_MN = torch.from_numpy(embedding_ME @ self._embedding_NE.T)
        nearest = cosine_MN.topk(min(NEIGHBOURS, cosine_MN.shape[1]), 1)
        weight_MQ = torch.softmax(nearest.values / self._temperature, 1)
        excess_M = np.log(np.maximum(self._text_shares(embedding_ME), 1e-30) / self._largest_share)
        penalty_M = np.maximum(excess_M, 0).astype(np.float32)
        return NewItemTable(embedding_ME, nearest.indices.numpy(), weight_MQ.numpy(), penalty_M)

    def _text_shares(self, embedding_ME: Floats) -> NDArray[np.float64]:
        """The mean of p_text(i | j) over sampled trained items j, float64 [M]."""
        cosine_MR = embedding_ME @ self._hub_RE.T
        share_MR = np.exp(cosine_MR / self._temperature - self._hub_density_R[None])
        return np.asarray(np.where(cosine_MR < _SAME, share_MR, 0.0).mean(1, dtype=np.float64))

    def _log_density(self, vector_HE: Floats) -> Floats:
        cosine_HR = vector_HE @ self._reference_RE.T
        scaled_HR = np.where(cosine_HR < _SAME, cosine_HR / np.float32(self._temperature), np.float32(-np.inf))
        return _log_sum_exp(scaled_HR, 1) + np.float32(self._log_scale)


def telling(
    history: Sequence[Place], trained_row: Callable[[Place], int | None], nearest_row: Callable[[Place], int]
) -> list[int]:
    """The trained rows whose texts speak for a history, in its order.

    New items may be alike in something that no trained text has, an injected sentence say, and would find each other by
    it. So beside a trained item they are not asked, and where there is none the trained one nearest to each stands in
    for it (rule 10; training/experiments/exposure).
    """
    rows = [row for item in history if (row := trained_row(item)) is not None]
    return rows or [nearest_row(item) for item in history]


def text_log_probs(table: NewItemTable, history_HE: Floats, density_H: Floats, dial: NewItemDial) -> Floats:
    """Log p_text of every new item, float32 [M]; ``density_H`` is the history's `TrainedTexts.log_density`."""
    history_HE, density_H = history_HE[: dial.history], density_H[: dial.history]
    weight_H = dial.decay ** np.arange(len(history_HE))
    offset_H = np.log(weight_H / weight_H.sum()).astype(np.float32) - density_H
    scaled_HM = history_HE @ table.embedding_ME.T / np.float32(dial.temperature)
    return _log_sum_exp(scaled_HM + offset_H[:, None], 0)


def model_shares(table: NewItemTable, share_N: Floats) -> Floats:
    """p_model of every new item, [M], from the probability of each trained item (0 where the beam lacks it)."""
    shares: Floats = np.einsum("mq,mq->m", table.weight_MQ, share_N[table.neighbour_MQ])
    return shares


def new_item_log_probs(
    table: NewItemTable, history_HE: Floats, density_H: Floats, share_N: Floats, dial: NewItemDial
) -> Floats:
    """The log-probability of every new item, float32 [M], at most 0 (the equation above)."""
    text_M = text_log_probs(table, history_HE, density_H, dial)
    model_M = np.log(model_shares(table, share_N) + np.float32(FLOOR))
    score_M = dial.bias + dial.text * text_M + dial.model * model_M - table.penalty_M
    return np.asarray(np.minimum(score_M, 0.0), np.float32)


def _log_sum_exp(values: Floats, axis: int) -> Floats:
    summed: Floats = torch.logsumexp(torch.from_numpy(values), axis).numpy()
    return summed


def merge(
    model: Sequence[tuple[Place, float]], new: Sequence[tuple[Place, float]], limit: int, most_new: int
) -> list[tuple[Place, float]]:
    """Two lists, each best first, as one of at most ``limit`` places, non-increasing in score.

    Of equal scores the model's goes first; of ``new`` only the best ``most_new`` take part.
    """
    both = [*((score, 0, place) for place, score in model), *((score, 1, place) for place, score in new[:most_new])]
    both.sort(key=lambda entry: (-entry[0], entry[1]))
    return [(place, score) for score, _, place in both[:limit]]


def most_new_items(share: float, limit: int) -> int:
    """How many of ``limit`` places new items may take: their share rounded down, but one at least, 0 at share 0."""
    return max(1, int(share * limit + 1e-9)) if share > 0 else 0
