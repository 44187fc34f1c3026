"""Our recommender with its beam blended (`service.model.blend`), as the service answers, and the fit of its weights.

Item numbers are the caller's; ``row_N`` says which row of the blend an item is, -1 for items that the model never met.

Shapes: N items, U users, F items found.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from service.model.blend import Blend, BlendWeights
from training.blend_fit import Choice, fit_weights
from training.data import Example
from training.progress import Progress, Reporter, silent
from training.recommender import BeamRecommender, Recommended

MIN_USERS = 20


class BlendedRecommender:
    """Ranks what ``beam`` finds together with the neighbours of the history."""

    def __init__(self, beam: BeamRecommender, blend: Blend, row_N: NDArray[np.int64]) -> None:
        self.beam, self.blend = beam, blend
        self._row_N, self._item_R = row_N, _inverse(row_N)

    def recommend(
        self,
        histories: Sequence[Sequence[int]],
        *,
        exclude_seen: bool,
        progress: Progress = silent,
    ) -> Recommended:
        """Ranked items per history with blended log-probabilities; what the beam found is kept beside them."""
        found = self.beam.recommend(histories, exclude_seen=exclude_seen, progress=progress)
        items, scores = [], []
        for history, known, log_probs in zip(histories, found.items, found.scores, strict=True):
            row_C, score_C = self.blend.ranked(*self._inputs(history, known, log_probs))
            items.append(self._item_R[row_C].tolist())
            scores.append(score_C.tolist())
        return replace(found, items=items, scores=scores, beam=found)

    def choice(self, example: Example, known: Sequence[int], log_probs: Sequence[float]) -> Choice:
        """What ``example`` could have chosen after a beam."""
        row_C, feature_C3 = self.blend.features(*self._inputs(example.history, known, log_probs))
        place = np.flatnonzero(row_C == self._row_N[example.target])
        return Choice(feature_C3, int(place[0]) if len(place) else -1)

    def _inputs(
        self, history: Sequence[int], known: Sequence[int], log_probs: Sequence[float]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        row_H = self._row_N[list(history)[::-1]]
        row_F = self._row_N[np.array(known, np.int64)]
        trained = row_F >= 0
        return row_H[row_H >= 0], row_F[trained], np.array(log_probs, np.float64)[trained]


def fit_blend(
    recommender: BlendedRecommender, examples: Sequence[Example], exclude_seen: bool, reporter: Reporter
) -> BlendWeights | None:
    """The likeliest weights on ``examples``, or None where they say nothing.

    Too few of the events' items are among the candidates, or no part tells which candidate was chosen.
    """
    with reporter.task("blend") as progress:
        histories = [example.history for example in examples]
        found = recommender.beam.recommend(histories, exclude_seen=exclude_seen, progress=progress)
    asked = zip(examples, found.items, found.scores, strict=True)
    choices = [recommender.choice(example, items, scores) for example, items, scores in asked]
    reached = sum(choice.chosen >= 0 for choice in choices)
    if reached < MIN_USERS:
        reporter.say(f"blend: only {reached} of {len(choices)} events are reached, too few to fit: the model alone")
        return None
    weights, loss = fit_weights(choices, recommender.blend.weights)
    if not (weights.model or weights.company or weights.text):
        reporter.say(f"blend: nothing tells which candidate {reached} users chose: the model alone")
        return None
    parts = f"model {weights.model:.2f}, company {weights.company:.2f}, text {weights.text:.2f}"
    reporter.say(f"blend: {parts}; {reached} of {len(choices)} events reached, {loss:.3f} nats each")
    return weights


def _inverse(row_N: NDArray[np.int64]) -> NDArray[np.int64]:
    item_R = np.zeros(int(row_N.max(initial=-1)) + 1, np.int64)
    trained = np.flatnonzero(row_N >= 0)
    item_R[row_N[trained]] = trained
    return item_R
