"""The baseline that is not degenerate: every new token is a draw from N(mu, Sigma) of the text vocabulary.

Rows are as far apart as words are, and mean nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.grounding.base import Clock, GroundingContext, GroundingResult, start_only
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Random:
    """``scale`` multiplies the deviation from the mean."""

    scale: float = 1.0

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`; there is nothing to resume."""
        clock = Clock()
        return start_only(self._rows(context), context, clock)

    def _rows(self, context: GroundingContext) -> Tensor:
        matrix_VD = context.vocabulary_VD.float()
        mean_D = matrix_VD.mean(0)
        generator = torch.Generator().manual_seed(context.seed)
        # a normal mixture of the centred rows has exactly their covariance, without factoring it
        weight = torch.randn(context.space.num_tokens, len(matrix_VD), generator=generator) / len(matrix_VD) ** 0.5
        rows: Tensor = mean_D + self.scale * (weight @ (matrix_VD - mean_D))
        return rows
