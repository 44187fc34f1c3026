"""The coefficients of `service.model.new_items`, by maximum likelihood on items held out of training.

Every pair of a user and a new item is a trial: was the item the user's next one? Logistic regression on the two
log-probabilities of the equation gives the odds; as they are small, log odds are log-probabilities. Users whose next
item was known are the trials that failed, and may be a weighted sample. It knows no models and no data sets.

Shapes: U users, M new items, F features (text, model, 1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RIDGE = 1e-3
STEPS = 50
CONVERGED = 1e-8

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trials:
    """Features [U, M, F], whether the item was the next one [U, M], and how often each user counts [U].

    ``open_UM`` marks the pairs that are trials at all: an item the user has met already is none.
    """

    feature_UMF: Array
    is_next_UM: NDArray[np.bool_]
    open_UM: NDArray[np.bool_]
    weight_U: Array


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients [F] and the negative log-likelihood of the trials in nats."""

    coefficient_F: Array
    loss: float


def fit(trials: Trials) -> Fit:
    """Newton's method on the weighted logistic likelihood.

    Raises:
        ValueError: no new item was anybody's next one.
    """
    feature_TF, is_next_T, weight_T = _flat(trials)
    if not is_next_T.any():
        raise ValueError("no new item was anybody's next one: nothing to fit on")
    coefficient_F = np.zeros(feature_TF.shape[1])
    coefficient_F[-1] = np.log(np.average(is_next_T, weights=weight_T))
    for _ in range(STEPS):
        step_F = _newton_step(feature_TF, is_next_T, weight_T, coefficient_F)
        coefficient_F = coefficient_F - step_F
        if np.abs(step_F).max() < CONVERGED:
            break
    return Fit(coefficient_F, _loss(feature_TF, is_next_T, weight_T, coefficient_F))


def _flat(trials: Trials) -> tuple[Array, NDArray[np.bool_], Array]:
    weight_UM = np.broadcast_to(trials.weight_U[:, None], trials.open_UM.shape)
    taken = trials.open_UM
    return trials.feature_UMF[taken], trials.is_next_UM[taken], weight_UM[taken]


def _newton_step(feature_TF: Array, is_next_T: NDArray[np.bool_], weight_T: Array, coefficient_F: Array) -> Array:
    chance_T = 1 / (1 + np.exp(-feature_TF @ coefficient_F))
    gradient_F = feature_TF.T @ (weight_T * (chance_T - is_next_T)) + RIDGE * coefficient_F
    spread_TF = feature_TF * (weight_T * chance_T * (1 - chance_T))[:, None]
    hessian_FF = spread_TF.T @ feature_TF + RIDGE * np.eye(len(coefficient_F))
    return np.asarray(np.linalg.solve(hessian_FF, gradient_F))


def _loss(feature_TF: Array, is_next_T: NDArray[np.bool_], weight_T: Array, coefficient_F: Array) -> float:
    log_odds_T = feature_TF @ coefficient_F
    return float((weight_T * (np.logaddexp(0, log_odds_T) - is_next_T * log_odds_T)).sum())
