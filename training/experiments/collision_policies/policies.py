"""Ways to choose the SID of a posted item, one item after another, as a log of posts would.

Each sees the frozen quantiser, the SIDs of trained items and those given before. How good a choice is, others measure.

Shapes: M posted items, E embedding width, D codebook width, L levels, K codes.
"""

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import Sid

CANDIDATES = 128  # what the service sends to the log


@dataclass(frozen=True, slots=True)
class Posts:
    """Who holds which SID so far: ``trained`` those of the checkpoint, ``held`` how many posted items each has."""

    quantizer: ResidualQuantizer
    trained: Set[Sid]
    held: Counter[Sid] = field(default_factory=Counter)

    def nearest(self, embedding_E: Tensor) -> Sid:
        """The quantiser's own SID."""
        return tuple(self.quantizer.encode(embedding_E[None])[0].tolist())

    def is_free(self, sid: Sid) -> bool:
        """Whether no item has it."""
        return sid not in self.trained and not self.held[sid]


Policy = Callable[[Posts, Tensor], Sid]


def bucket(posts: Posts, embedding_E: Tensor) -> Sid:
    """The quantiser's own SID, shared with whoever has it."""
    return posts.nearest(embedding_E)


def least_filled(posts: Posts, embedding_E: Tensor) -> Sid:
    """The service's: under the own prefix the last code with the fewest items, the nearer on a tie, free ones first."""
    prefix = posts.nearest(embedding_E)[:-1]
    codes = posts.quantizer.last_level_preferences(embedding_E, prefix)[:CANDIDATES]
    sids = [(*prefix, code) for code in codes]
    return min(sids, key=lambda sid: (posts.held[sid] + (sid in posts.trained), sid in posts.trained))


def neighbour_prefixes(posts: Posts, embedding_E: Tensor) -> Sid:
    """The free SID that leaves the least unexplained, all last two codes tried; the own SID when none is free."""
    nearest = posts.nearest(embedding_E)
    head, codes = nearest[:-2], posts.quantizer.codes
    for pair in pair_order(posts.quantizer, embedding_E, head).tolist():
        sid = (*head, pair // codes, pair % codes)
        if posts.is_free(sid):
            return sid
    return nearest


POLICIES: dict[str, Policy] = {
    "bucket": bucket,
    "least_filled": least_filled,
    "neighbour_prefixes": neighbour_prefixes,
}


def pair_order(quantizer: ResidualQuantizer, embedding_E: Tensor, head: Sid) -> Tensor:
    """All pairs of the last two codes below ``head`` as ``first * K + second``, int64 [K * K], least residual first."""
    left_D = residual(quantizer, embedding_E[None], torch.tensor([head], dtype=torch.int64))[0]
    first_KD, second_KD = quantizer.codebooks_LKD[-2], quantizer.codebooks_LKD[-1]
    first_K = ((left_D - first_KD) ** 2).sum(1)
    second_K = (second_KD**2).sum(1) - 2 * second_KD @ left_D
    distance_KK = first_K[:, None] + second_K[None] + 2 * first_KD @ second_KD.T
    return torch.sort(distance_KK.reshape(-1), stable=True).indices


def residual(quantizer: ResidualQuantizer, embedding_ME: Tensor, codes_Mn: Tensor) -> Tensor:
    """What the first n codes leave of the embeddings in codebook space, float32 [M, D]."""
    left_MD = quantizer.project(embedding_ME)
    for level in range(codes_Mn.shape[1]):
        left_MD = left_MD - quantizer.codebooks_LKD[level][codes_Mn[:, level]]
    return left_MD


def assign(
    policy: Policy, quantizer: ResidualQuantizer, trained_NL: NDArray[np.int64], embedding_ME: NDArray[np.float32]
) -> NDArray[np.int64]:
    """The SIDs of items posted in this order, int64 [M, L]."""
    posts = Posts(quantizer, {tuple(codes) for codes in trained_NL.tolist()})
    given = []
    for embedding_E in torch.from_numpy(embedding_ME):
        sid = policy(posts, embedding_E)
        posts.held[sid] += 1
        given.append(sid)
    return np.array(given, np.int64).reshape(-1, quantizer.levels)
