"""Regression to descriptions: each token's row is the mean encoding of the items that carry it, in closed form.

Encodings are frozen hidden states of the backbone (``layer``, ``pooling``), centred over the items; the least-squares
optimum of "row of code c predicts the encodings of its items" is their mean. Rows are rescaled per level to the norm
of the text vocabulary. Codes that no item carries get the vocabulary's noisy mean.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.embed import Pooling, embed_with_backbone
from training.grounding.base import (
    Clock,
    GroundingContext,
    GroundingResult,
    noisy_mean,
    start_only,
    vocabulary_radius,
)
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Regression:
    """Which hidden layer, how it is pooled, how many tokens of a text are read, how far rows spread around the mean."""

    layer: int = -1
    pooling: Pooling = "mean"
    max_text_tokens: int = 32
    scale: float = 1.0

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`; one pass over the texts, nothing to resume."""
        clock = Clock()
        encoding = embed_with_backbone(
            context.backbone,
            context.texts,
            layer=self.layer,
            pooling=self.pooling,
            max_tokens=self.max_text_tokens,
            progress=progress,
        )
        encoding_ND = torch.from_numpy(encoding)
        # hidden states of a language model point much the same way; what tells items apart is around their mean
        rows = code_means(encoding_ND - encoding_ND.mean(0), context, self.scale)
        return start_only(rows, context, clock, samples=len(context.texts))


def code_means(encoding_ND: Tensor, context: GroundingContext, scale: float = 1.0) -> Tensor:
    """Mean encoding per token, each level at ``scale`` times the vocabulary's spread, float32 [L * K, D]."""
    space, vocabulary_VD = context.space, context.vocabulary_VD.float()
    centre_D = vocabulary_VD.mean(0)
    norm = scale * vocabulary_radius(vocabulary_VD)
    rows = noisy_mean(vocabulary_VD, space.num_tokens, 0.01, context.seed)
    for level in range(space.levels):
        code_N = torch.from_numpy(context.codes_NL[:, level])
        used_K, mean_KD = _means_by_code(encoding_ND, code_N, space.codes)
        scaled_KD = mean_KD * (norm / mean_KD[used_K].norm(dim=1).mean().clamp(min=1e-12))
        rows[space.codes * level :][: space.codes][used_K] = (centre_D + scaled_KD)[used_K]
    return rows


def _means_by_code(encoding_ND: Tensor, code_N: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    count_K = torch.bincount(code_N, minlength=codes)
    sum_KD = torch.zeros(codes, encoding_ND.shape[1]).index_add_(0, code_N, encoding_ND)
    return count_K > 0, sum_KD / count_K.clamp(min=1)[:, None]
