"""Regression to descriptions: each token's row is the mean encoding of the items that carry it, in closed form.

Encodings are frozen hidden states of the backbone (``layer``, ``pooling``), centred over the items; the least-squares
optimum of "row of code c predicts the encodings of its items" is their mean. Rows are rescaled per level to the norm
of the text vocabulary. Codes that no item carries get the vocabulary's noisy mean.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.embed import Pooling, embed_with_backbone
from training.grounding.base import Clock, GroundingContext, GroundingResult, Progress, noisy_mean


@dataclass(frozen=True, slots=True)
class Regression:
    """Options: which hidden layer, how it is pooled, how many tokens of a text are read."""

    layer: int = -1
    pooling: Pooling = "mean"
    max_text_tokens: int = 32

    def ground(self, context: GroundingContext, progress: Progress | None = None) -> GroundingResult:
        """See `Objective.ground`."""
        clock = Clock()
        encoding_ND = torch.from_numpy(
            embed_with_backbone(
                context.backbone,
                context.texts,
                layer=self.layer,
                pooling=self.pooling,
                max_tokens=self.max_text_tokens,
                progress=None if progress is None else lambda done, total: progress(done, total, 0.0),
            )
        )
        rows = code_means(encoding_ND - encoding_ND.mean(0), context)
        head = None if context.tied else rows.clone()
        wall, cpu = clock.read()
        return GroundingResult(rows, head, samples=len(context.texts), wall_seconds=wall, cpu_seconds=cpu)


def code_means(encoding_ND: Tensor, context: GroundingContext) -> Tensor:
    """Mean encoding per token, each level scaled to the vocabulary's mean norm around its mean, float32 [L * K, D]."""
    space, vocabulary_VD = context.space, context.vocabulary_VD.float()
    centre_D = vocabulary_VD.mean(0)
    norm = (vocabulary_VD - centre_D).norm(dim=1).mean()
    rows = noisy_mean(vocabulary_VD, space.num_tokens, 0.01, context.seed)
    for level in range(space.levels):
        code_N = torch.from_numpy(context.codes_NL[:, level])
        count_K = torch.bincount(code_N, minlength=space.codes)
        sum_KD = torch.zeros(space.codes, encoding_ND.shape[1]).index_add_(0, code_N, encoding_ND)
        used = count_K > 0
        mean_KD = sum_KD[used] / count_K[used, None]
        scaled = mean_KD * (norm / mean_KD.norm(dim=1).mean().clamp(min=1e-12))
        rows[level * space.codes : (level + 1) * space.codes][used] = centre_D + scaled
    return rows
