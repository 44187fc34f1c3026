"""Which codes to open: clusters of new items that the codebooks do not know.

An item is *far* at a level if what its code leaves unexplained is more than `FAR_PERCENT` % of the checkpoint's own
items leave there, and the levels below do not make up for it. Far items alone are outliers; a code is proposed where
enough of them lie so close to each other that their mean would explain each of them clearly better than its present
code, than the mean of all codes and than none. Points that are scattered in many dimensions gain nothing from a
common mean, so they make no proposal, however far they are. Pure functions of vectors: nothing here knows logs, engines
or texts.

Levels are taken from the first: items that get a new code there are not looked at below, as all their codes change. The
last level tells items of a prefix apart and is never grown.

Shapes: M new items, F far ones, N trained items, E embedding width, D codebook width, L levels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.quantizer import ResidualQuantizer

FAR_PERCENT = 90.0
GAIN = 0.9  # the new code must leave at most this share of what the present code leaves
CLEAR = 0.85  # and its members together at most this share of what that allows
SEED = 0.75  # a cluster begins with pairs that are closer than two members must be
MAX_FAR = 5_000  # of which pairs are compared
ROUNDS = 20

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A code worth opening at ``level`` (0-based).

    ``members`` are the numbers of the new items that it explains better; ``left_before`` and ``left_after`` are the
    mean shares of their squared length that the present and the proposed code leave unexplained.
    """

    level: int
    centroid_D: tuple[float, ...]
    members: tuple[int, ...]
    left_before: float
    left_after: float


def usual_shares(quantizer: ResidualQuantizer, embedding_NE: Floats, percent: float = FAR_PERCENT) -> tuple[float, ...]:
    """Per level the unexplained share that ``percent`` % of the trained items stay below."""
    if not len(embedding_NE):
        return (1.0,) * quantizer.levels
    _, share_NL = _shares(quantizer, torch.from_numpy(embedding_NE))
    return tuple(float(value) for value in np.percentile(share_NL.numpy(), percent, axis=0))


def propose_codes(
    quantizer: ResidualQuantizer,
    embedding_ME: Floats,
    usual: Sequence[float],
    spare: Sequence[int],
    min_items: int,
    gain: float = GAIN,
) -> list[Proposal]:
    """The codes to open, level by level, the largest cluster of a level first.

    Args:
        quantizer: with the codes that are open already.
        embedding_ME: the new items' embeddings.
        usual: `usual_shares` of the trained items.
        spare: how many codes are left per level.
        min_items: how many items a new code must explain, >= 2.
        gain: the largest share of what is unexplained now that the new code may leave of each of them.
    """
    proposals: list[Proposal] = []
    is_free_M = np.ones(len(embedding_ME), np.bool_)
    for level in range(quantizer.levels - 1) if len(embedding_ME) else ():
        codes_ML, share_ML = _shares(quantizer, torch.from_numpy(embedding_ME))
        point_MD = quantizer.residual(torch.from_numpy(embedding_ME), codes_ML[:, :level]).numpy()
        length_M = np.maximum((quantizer.project(torch.from_numpy(embedding_ME)) ** 2).sum(1).numpy(), 1e-12)
        is_far_M = (share_ML > torch.tensor(usual))[:, level : quantizer.levels - 1].all(1).numpy()
        far_F = np.flatnonzero(is_free_M & is_far_M)
        left_F = share_ML[far_F, level].numpy() * length_M[far_F]
        mean_D = quantizer.codebooks_LKD[level].mean(0).numpy()
        without_F = np.minimum((point_MD[far_F] ** 2).sum(1), ((point_MD[far_F] - mean_D) ** 2).sum(1))
        bar_F = gain * np.minimum(np.minimum(left_F, length_M[far_F]), without_F)
        for centroid_D, places in _clusters(point_MD[far_F], bar_F, spare[level], min_items):
            members = far_F[places]
            after = ((point_MD[members] - centroid_D) ** 2).sum(1) / length_M[members]
            before = left_F[places] / length_M[members]
            is_free_M[members] = False
            vector = tuple(centroid_D.tolist())
            shares = (float(before.mean()), float(after.mean()))
            proposals.append(Proposal(level, vector, tuple(members.tolist()), *shares))
    return proposals


def _shares(quantizer: ResidualQuantizer, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int64 [M, L] and the share of its squared length that each level leaves of an item, float32 [M, L]."""
    codes_ML, left_ML = quantizer.encode_with_distances(embedding)
    length_M1 = (quantizer.project(embedding) ** 2).sum(1, keepdim=True).clamp(min=1e-12)
    return codes_ML, (left_ML / length_M1).clamp(min=0)


def _clusters(point_FD: Floats, bar_F: Floats, most: int, min_items: int) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Centroids and the places of their members, whose squared distance is at most their bar; none belongs to two."""
    rest = np.arange(len(point_FD))[:MAX_FAR]
    for _ in range(most):
        if len(rest) < min_items:
            return
        inside = _densest(point_FD[rest], bar_F[rest])
        if inside.sum() < min_items:
            return
        centroid_D = point_FD[rest[inside]].mean(0)
        # half of a sphere of scattered points has a mean, too, which takes a little from each of them
        distance_C = ((point_FD[rest[inside]] - centroid_D) ** 2).sum(1)
        if distance_C.mean() <= CLEAR * bar_F[rest[inside]].mean():
            yield centroid_D, rest[inside]
        rest = rest[~inside]


def _densest(point_RD: Floats, bar_R: Floats) -> NDArray[np.bool_]:
    """The members of the densest cluster: begun at the point with most near others, then moved to its mean."""
    squared_R = (point_RD**2).sum(1)
    distance_RR = squared_R[:, None] - 2 * point_RD @ point_RD.T + squared_R[None]
    # two members of a cluster lie twice as far from each other (squared) as from its mean
    near_RR = distance_RR <= SEED * (bar_R[:, None] + bar_R[None])
    inside: NDArray[np.bool_] = near_RR[near_RR.sum(1).argmax()]
    for _ in range(ROUNDS):
        count = max(int(inside.sum()), 2)
        centroid_D = point_RD[inside].mean(0)
        # a mean of n points lies nearer to each of them than to one that it was not made of: (n / (n - 1)) squared
        distance_R = ((point_RD - centroid_D) ** 2).sum(1) * np.where(inside, (count / (count - 1)) ** 2, 1.0)
        following: NDArray[np.bool_] = distance_R <= bar_R
        if not following.any() or (following == inside).all():
            return following
        inside = following
    return inside
