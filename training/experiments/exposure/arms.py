"""Ways to score new items that might bound what injected titles gain: each an arm of `measure`.

All of them change what `service.model.new_items` is given, never its equation: which history items count, their
densities, the penalties. What the service does is the arm `SERVED`; the others are kept to be measured again. They know
no runs and no injections.

Shapes: N items, M new items, U users, E embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.cold_items import ColdItems
from training.new_item_scores import NewItemScorer

Floats = NDArray[np.float32]
SERVED = "stand_in"


@dataclass(frozen=True, slots=True)
class Arm:
    """What an arm changes.

    Args:
        history: whose texts count: of all items; of trained ones, of new ones where there is no trained one; the same,
            but trained ones stand in for new ones (served); trained ones stand in for new ones wherever they are.
        floor: percentile of the trained items' densities below which no density falls; None for no floor.
        floor_new_only: the floor holds for new items of the history only.
        own_mass: the new items compete in the softmax too.
        alike: cosine from which new items share the mass of one; None to share none.
    """

    history: Literal["all", "trained", "stand_in", "stand_in_always"] = "all"
    floor: float | None = None
    floor_new_only: bool = False
    own_mass: bool = False
    alike: float | None = None

    def scorer(self, items: ColdItems, temperature: float, shown_ME: Floats | None = None) -> NewItemScorer:
        """As `training.new_item_scores.ScorerOf`."""
        return ArmScorer(self, items, temperature, shown_ME)


ARMS: Mapping[str, Arm] = {
    "all": Arm(),
    SERVED: Arm("stand_in"),
    "trained": Arm("trained"),
    "stand_in_always": Arm("stand_in_always"),
    "own_mass": Arm(own_mass=True),
    "alike_80": Arm(alike=0.8),
    "floor_10": Arm(floor=10),
    "floor_90": Arm(floor=90),
    "trained_floor_90_for_new": Arm("trained", floor=90, floor_new_only=True),
}


class ArmScorer(NewItemScorer):
    """`NewItemScorer` with the arm's changes."""

    def __init__(self, arm: Arm, items: ColdItems, temperature: float, shown_ME: Floats | None) -> None:
        super().__init__(items, temperature, shown_ME)
        self._arm = arm
        self._density_N = self._texts.log_density(items.embedding_NE)
        if arm.floor is not None:
            self._raise_densities(arm.floor)
        if arm.own_mass:
            self._density_N = np.logaddexp(self._density_N, self._new_mass(temperature)).astype(np.float32)
        if arm.alike is not None:
            self._share_mass(arm.alike)

    def _raise_densities(self, percentile: float) -> None:
        is_new_N = self._cold.is_new_N
        least = np.percentile(self._density_N[~is_new_N], percentile)
        held_N = is_new_N | (not self._arm.floor_new_only)
        self._density_N = np.where(held_N, np.maximum(self._density_N, least), self._density_N).astype(np.float32)

    def _new_mass(self, temperature: float) -> Floats:
        cosine_NM = self._cold.embedding_NE @ self.table.embedding_ME.T
        cosine_NM[cosine_NM > 1 - 1e-5] = -np.inf  # an item does not compete with itself
        return np.asarray(np.logaddexp.reduce(cosine_NM / temperature, 1), np.float32)

    def _share_mass(self, cosine: float) -> None:
        crowd_M = (self.table.embedding_ME @ self.table.embedding_ME.T >= cosine).sum(1)
        penalty_M = self.table.penalty_M + np.log(np.maximum(crowd_M, 1))
        self.table = replace(self.table, penalty_M=penalty_M.astype(np.float32))

    def _texts_of(self, history: Sequence[int]) -> tuple[Floats, Floats]:
        if self._arm.history == "stand_in":
            return super()._texts_of(history)
        newest_first = list(history[::-1])
        if self._arm.history == "stand_in_always":
            rows = [int(self._nearest_N[item]) for item in newest_first]
            return self._trained_TE[rows], self._density_T[rows]
        if self._arm.history == "trained":
            newest_first = [item for item in newest_first if self._cold.row_N[item] >= 0] or newest_first
        return self._cold.embedding_NE[newest_first], self._density_N[newest_first]
