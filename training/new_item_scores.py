"""What `service.model.new_items` says of many users at once: the same functions that serve one request, in a loop.

Shapes: U users, M new items, H history items (newest first), N items, T trained ones, E embedding width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.model.new_items import (
    FLOOR,
    NewItemDial,
    TrainedTexts,
    model_shares,
    new_item_log_probs,
    telling,
    text_log_probs,
)
from training.cold_items import ColdItems
from training.data import Example
from training.recommender import Recommended

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class UserInputs:
    """What one user brings: history embeddings [H, E] with their densities [H], and the beam's probabilities [T]."""

    history_HE: Floats
    density_H: Floats
    share_T: Floats


class NewItemScorer:
    """Scores the new items of ``cold`` for users, at one temperature of the cosines.

    ``shown_ME`` are embeddings to score in place of the new items' own; histories keep their own.
    """

    def __init__(self, cold: ColdItems, temperature: float, shown_ME: Floats | None = None) -> None:
        self._cold = cold
        known = ~cold.is_new_N
        self._trained_TE = np.zeros((int(cold.row_N.max()) + 1, cold.embedding_NE.shape[1]), np.float32)
        self._trained_TE[cold.row_N[known]] = cold.embedding_NE[known]
        self._texts = TrainedTexts(self._trained_TE, temperature)
        self._density_T = self._texts.log_density(self._trained_TE)
        own = self._texts.table(cold.embedding_NE[cold.new_M])
        self._nearest_N = cold.row_N.copy()
        self._nearest_N[cold.new_M] = own.neighbour_MQ[:, 0]
        self.table = own if shown_ME is None else self._texts.table(shown_ME)

    def features(self, examples: Sequence[Example], found: Recommended, dial: NewItemDial) -> tuple[Floats, Floats]:
        """Log p_text and log (p_model + floor), each [U, M]; of the dial only temperature, decay and history count."""
        text_UM = np.empty((len(examples), len(self.table)), np.float32)
        model_UM = np.empty_like(text_UM)
        for user, inputs in enumerate(self._inputs(examples, found)):
            text_UM[user] = text_log_probs(self.table, inputs.history_HE, inputs.density_H, dial)
            model_UM[user] = np.log(model_shares(self.table, inputs.share_T) + np.float32(FLOOR))
        return text_UM, model_UM

    def log_probs(self, examples: Sequence[Example], found: Recommended, dial: NewItemDial) -> Floats:
        """The new items' log-probabilities, [U, M]; -inf for those in the history."""
        score_UM = np.empty((len(examples), len(self.table)), np.float32)
        for user, inputs in enumerate(self._inputs(examples, found)):
            score_UM[user] = new_item_log_probs(self.table, inputs.history_HE, inputs.density_H, inputs.share_T, dial)
        return np.where(self.open_pairs(examples), score_UM, np.float32(-np.inf))

    def open_pairs(self, examples: Sequence[Example]) -> NDArray[np.bool_]:
        """Which new items are not in the user's history, bool [U, M]."""
        new_M = self._cold.new_M
        return np.stack([~np.isin(new_M, example.history) for example in examples])

    def targets(self, examples: Sequence[Example]) -> NDArray[np.bool_]:
        """Which new item is the next one, bool [U, M]; no one for a user whose next item is known."""
        target_U = np.array([example.target for example in examples], np.int64)
        return np.asarray(target_U[:, None] == self._cold.new_M[None])

    def _inputs(self, examples: Sequence[Example], found: Recommended) -> Iterator[UserInputs]:
        row_N = self._cold.row_N
        for example, items, scores in zip(examples, found.items, found.scores, strict=True):
            share_T = np.zeros(len(self._trained_TE), np.float32)
            share_T[row_N[items]] = np.exp(scores)
            yield UserInputs(*self._texts_of(example.history), share_T)

    def _texts_of(self, history: Sequence[int]) -> tuple[Floats, Floats]:
        """Embeddings [H, E] and densities [H] of what speaks for a history, newest first."""
        row_N, nearest_N = self._cold.row_N, self._nearest_N
        rows = telling(
            history[::-1],
            lambda item: int(row_N[item]) if row_N[item] >= 0 else None,
            lambda item: int(nearest_N[item]),
        )
        return self._trained_TE[rows], self._density_T[rows]


ScorerOf = Callable[[ColdItems, float, Floats | None], NewItemScorer]
