"""Codebook vectors as rows: the quantiser's geometry, turned into the model's space by an orthonormal projection.

Distances between codes of a level are kept exactly (an isometry times one factor per level), which is all that an
initialisation can know without the language model. It needs codebooks no wider than the model.

Shapes: L levels, K codes, E codebook width, D model width.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from training.errors import RecipeError
from training.grounding.base import Clock, GroundingContext, GroundingResult, start_only, vocabulary_radius
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Codebook:
    """``scale`` is the mean distance of a level's rows from the vocabulary's mean, in vocabulary radii."""

    scale: float = 1.0

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`; there is nothing to resume.

        Raises:
            RecipeError: there are no codebooks, or they are wider than the model.
        """
        clock = Clock()
        return start_only(self._rows(context), context, clock)

    def _rows(self, context: GroundingContext) -> Tensor:
        vocabulary_VD = context.vocabulary_VD.float()
        width = vocabulary_VD.shape[1]
        if context.codebooks_LKE is None or context.codebooks_LKE.shape[2] > width:
            raise RecipeError(f"grounding.objective 'codebook' needs a quantiser with codebooks of width <= {width}")
        codebooks_LKE = torch.from_numpy(context.codebooks_LKE)
        centred_LKE = codebooks_LKE - codebooks_LKE.mean(1, keepdim=True)
        projected_LKD = centred_LKE @ _orthonormal(centred_LKE.shape[2], width, context.seed)
        norm_L11 = projected_LKD.norm(dim=2).mean(1).clamp(min=1e-12)[:, None, None]
        radius = self.scale * vocabulary_radius(vocabulary_VD)
        spare = context.space.codes - centred_LKE.shape[1]
        # spare codes have no vector: they start in the middle
        projected_LKD = F.pad(projected_LKD, (0, 0, 0, spare))
        rows_LKD: Tensor = vocabulary_VD.mean(0) + projected_LKD * (radius / norm_L11)
        return rows_LKD.flatten(0, 1)


def _orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    """Orthonormal rows, float32 [rows, columns]; rows <= columns."""
    generator = torch.Generator().manual_seed(seed)
    columns_first: Tensor = torch.linalg.qr(torch.randn(columns, rows, generator=generator))[0]
    return columns_first.T.contiguous()
