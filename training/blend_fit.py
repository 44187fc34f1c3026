"""The weights of `service.model.blend`, by maximum likelihood on held-out events: a conditional logit over candidates.

A weight that likelihood would make negative is left out (0): no item is worse for being near. It knows no models and no
data sets.

Shapes: U users, C candidates of a user, G of the user with most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.blend import BlendWeights

RIDGE = 1e-4
STEPS = 100
PARTS = ("model", "company", "text")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one user could have chosen, the features [C, 3] of each, and the place of what was; -1 where it is none."""

    feature_C3: NDArray[np.float64]
    chosen: int


def fit_weights(choices: Sequence[Choice], start: BlendWeights) -> tuple[BlendWeights, float]:
    """The likeliest weights and their loss in nats an event; ``start`` says temperature, decay and history.

    Raises:
        ValueError: nobody chose a candidate.
    """
    reached = [choice for choice in choices if choice.chosen >= 0]
    if not reached:
        raise ValueError("no event's item is among its candidates: nothing to fit on")
    feature_UG3, open_UG = _padded(reached)
    chosen_U = torch.tensor([choice.chosen for choice in reached])
    active = torch.ones(3, dtype=torch.bool)
    while True:
        weight_3, loss = _likeliest(feature_UG3, open_UG, chosen_U, active)
        if not (weight_3 < 0).any():
            break
        active[int(weight_3.argmin())] = False
    found = dict(zip(PARTS, weight_3.tolist(), strict=True))
    return replace(start, **found, reach=len(reached) / len(choices)), loss


def _padded(choices: Sequence[Choice]) -> tuple[Tensor, Tensor]:
    longest = max(len(choice.feature_C3) for choice in choices)
    feature_UG3 = torch.zeros(len(choices), longest, 3, dtype=torch.float64)
    open_UG = torch.zeros(len(choices), longest, dtype=torch.bool)
    for user, choice in enumerate(choices):
        feature_UG3[user, : len(choice.feature_C3)] = torch.from_numpy(choice.feature_C3)
        open_UG[user, : len(choice.feature_C3)] = True
    return feature_UG3, open_UG


def _likeliest(feature_UG3: Tensor, open_UG: Tensor, chosen_U: Tensor, active: Tensor) -> tuple[Tensor, float]:
    weight_3 = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight_3], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        score_UG = (feature_UG3 @ (weight_3 * active)).masked_fill(~open_UG, -torch.inf)
        total = torch.nn.functional.cross_entropy(score_UG, chosen_U) + RIDGE * weight_3.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return (weight_3 * active).detach(), float(loss().detach())
