"""Item embeddings -> codebooks and SIDs, by residual k-means or RQ-VAE, with collisions handled as the recipe says.

Policies: ``reassign`` gives every item its own last code (same length), ``extra_level`` appends a level that numbers
the items of a bucket, ``bucket`` keeps shared SIDs. What is returned is the frozen quantiser that serving uses for
new items.
"""

from dataclasses import dataclass
from typing import Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from service.model.quantizer import ResidualQuantizer
from training.collisions import number_inside_buckets, reassign_last_code
from training.errors import TrainingError
from training.rqvae import fit_rqvae
from training.sid_report import SidReport, report

Method = Literal["rkmeans", "rqvae"]
Policy = Literal["reassign", "extra_level", "bucket"]
_ITERATIONS = 25


@dataclass(frozen=True, slots=True)
class SidFit:
    """The frozen quantiser, the items' codes int64 [N, L] and their report."""

    quantizer: ResidualQuantizer
    codes_NL: NDArray[np.int64]
    report: SidReport


def fit_semantic_ids(
    embedding_NE: NDArray[np.float32],
    *,
    method: Method,
    levels: int,
    codes: int,
    policy: Policy,
    seed: int,
    fit_rows: NDArray[np.int64] | None = None,
) -> SidFit:
    """Fit codebooks on ``fit_rows`` (default all) and give every item its SID.

    Raises:
        TrainingError: there are fewer items to fit on than codes.
    """
    fitted = embedding_NE if fit_rows is None else embedding_NE[fit_rows]
    if len(fitted) < codes:
        raise TrainingError(f"{len(fitted)} items cannot fill {codes} codes a level; lower sids.codes")
    fit = fit_rkmeans if method == "rkmeans" else fit_rqvae
    quantizer = fit(fitted, levels, codes, seed)
    embedding = torch.from_numpy(embedding_NE)
    nearest, residual = quantizer.encode_with_distances(embedding)
    before_NL = nearest.numpy()
    after_NL = before_NL
    if policy == "reassign":
        distances = quantizer.last_level_distances(embedding, nearest).numpy()
        after_NL = reassign_last_code(before_NL, distances)
    elif policy == "extra_level":
        quantizer, after_NL = _with_extra_level(quantizer, before_NL)
    rest = tuple(float(x) for x in residual.mean(0))
    rest += rest[-1:] * (after_NL.shape[1] - len(rest))
    return SidFit(quantizer, after_NL, report(before_NL, after_NL, codes, rest))


def fit_rkmeans(embedding_NE: NDArray[np.float32], levels: int, codes: int, seed: int) -> ResidualQuantizer:
    """Residual k-means: each level clusters what the levels above left over."""
    faiss.omp_set_num_threads(1)  # deterministic sums
    residual = np.ascontiguousarray(embedding_NE, dtype=np.float32)
    codebooks = []
    for level in range(levels):
        kmeans = faiss.Kmeans(
            residual.shape[1], codes, niter=_ITERATIONS, seed=seed + level, min_points_per_centroid=1, verbose=False
        )
        kmeans.train(residual)
        nearest = kmeans.index.search(residual, 1)[1][:, 0]
        residual = np.ascontiguousarray(residual - kmeans.centroids[nearest])
        codebooks.append(torch.from_numpy(kmeans.centroids.copy()))
    return ResidualQuantizer(torch.stack(codebooks))


def _with_extra_level(
    quantizer: ResidualQuantizer, codes_NL: NDArray[np.int64]
) -> tuple[ResidualQuantizer, NDArray[np.int64]]:
    """Append the place inside the bucket.

    The extra codebook's vectors grow along one axis, so that a new item prefers place 0, then 1, and so on.

    Raises:
        TrainingError: a bucket has more items than codes.
    """
    place_N = number_inside_buckets(codes_NL)
    if place_N.max() >= quantizer.codes:
        raise TrainingError(
            f"a bucket holds {place_N.max() + 1} items, more than {quantizer.codes} codes; raise sids.codes"
        )
    extra_KD = torch.zeros_like(quantizer.codebooks_LKD[0])
    extra_KD[:, 0] = 1e3 * torch.arange(quantizer.codes)
    books = torch.cat([quantizer.codebooks_LKD, extra_KD[None]])
    return ResidualQuantizer(books, quantizer.encoder), np.column_stack([codes_NL, place_N])
