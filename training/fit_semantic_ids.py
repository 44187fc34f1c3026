"""Item embeddings -> codebooks and SIDs, by residual k-means or RQ-VAE, with collisions handled as the recipe says.

Policies: ``reassign`` gives every item its own last code (same length), ``extra_level`` appends a level that numbers
the items of a bucket, ``bucket`` keeps shared SIDs. What is returned is the frozen quantiser that serving uses for new
items. It knows nothing of texts and interactions.

Shapes: N items, E embedding width, L levels, K codes, D codebook width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """The frozen quantiser (one level longer for ``extra_level``), the items' codes int64 [N, L] and their report."""

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
    project_to: int | None = None,
) -> SidFit:
    """Fit codebooks on ``fit_rows`` (default all) and give every item its SID.

    Args:
        embedding_NE: item embeddings.
        method: ``rkmeans`` or ``rqvae``.
        levels: L, before an extra level.
        codes: K.
        policy: what to do with items that share a SID.
        seed: of the clustering.
        fit_rows: the items that codebooks may see.
        project_to: residual k-means on so many principal components; what is left over after a level of full-width
            embeddings is nearly noise, which clusters into one large group and many single items.

    Raises:
        TrainingError: there are fewer items to fit on than codes, or more in one bucket than an extra level can count.
    """
    fitted_NE = embedding_NE if fit_rows is None else embedding_NE[fit_rows]
    if len(fitted_NE) < codes:
        raise TrainingError(f"{len(fitted_NE)} items cannot fill {codes} codes a level; lower sids.codes")
    if method == "rqvae":
        quantizer = fit_rqvae(fitted_NE, levels, codes, seed)
    else:
        quantizer = fit_rkmeans(fitted_NE, levels, codes, seed, project_to)
    nearest_NL = quantizer.encode(torch.from_numpy(embedding_NE)).numpy()
    codes_NL = nearest_NL
    if policy == "reassign":
        codes_NL = _reassigned(quantizer, embedding_NE, nearest_NL, fit_rows)
    elif policy == "extra_level":
        quantizer, codes_NL = _with_extra_level(quantizer, nearest_NL)
    residual_L = mean_residuals(quantizer, embedding_NE, codes_NL)
    return SidFit(quantizer, codes_NL, report(nearest_NL, codes_NL, codes, residual_L))


def fit_rkmeans(
    embedding_NE: NDArray[np.float32], levels: int, codes: int, seed: int, project_to: int | None = None
) -> ResidualQuantizer:
    """Residual k-means: each level clusters what the levels above left over."""
    encoder = () if project_to is None else (_principal_components(embedding_NE, project_to),)
    residual_ND = ResidualQuantizer(torch.empty(0), encoder).project(torch.from_numpy(embedding_NE))
    codebooks = []
    for level in range(levels):
        codebook_KD = _cluster(residual_ND.numpy(), codes, seed + level)
        nearest_N = ResidualQuantizer(codebook_KD[None]).encode(residual_ND)[:, 0]
        residual_ND = residual_ND - codebook_KD[nearest_N]
        codebooks.append(codebook_KD)
    return ResidualQuantizer(torch.stack(codebooks), encoder)


def mean_residuals(
    quantizer: ResidualQuantizer, embedding_NE: NDArray[np.float32], codes_NL: NDArray[np.int64]
) -> tuple[float, ...]:
    """What the given codes leave over after each of their levels: mean squared length in codebook space."""
    residual_ND = quantizer.project(torch.from_numpy(embedding_NE))
    means = []
    for codebook_KD, code_N in zip(quantizer.codebooks_LKD, torch.from_numpy(codes_NL).T, strict=True):
        residual_ND = residual_ND - codebook_KD[code_N]
        means.append(float((residual_ND**2).sum(1).mean()))
    return tuple(means)


def _cluster(points_ND: NDArray[np.float32], codes: int, seed: int) -> Tensor:
    points_ND = np.ascontiguousarray(points_ND)
    kmeans = faiss.Kmeans(points_ND.shape[1], codes, niter=_ITERATIONS, seed=seed, min_points_per_centroid=1)
    with _one_thread():
        kmeans.train(points_ND)
    return torch.from_numpy(np.array(kmeans.centroids, dtype=np.float32))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One OpenMP thread, so that sums are deterministic; faiss and torch share the setting, so it is given back."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _principal_components(embedding_NE: NDArray[np.float32], width: int) -> tuple[Tensor, Tensor]:
    """A centring linear map to the directions of largest variance, as the quantiser's encoder: weight and bias."""
    mean_E = embedding_NE.mean(0, dtype=np.float64)
    centred_NE = embedding_NE - mean_E
    _, vectors_EE = np.linalg.eigh(centred_NE.T @ centred_NE)
    weight_DE = vectors_EE[:, ::-1][:, :width].T
    return torch.from_numpy(weight_DE.astype(np.float32)), torch.from_numpy(-(weight_DE @ mean_E).astype(np.float32))


def _reassigned(
    quantizer: ResidualQuantizer,
    embedding_NE: NDArray[np.float32],
    nearest_NL: NDArray[np.int64],
    fit_rows: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    def distances(items_G: NDArray[np.int64]) -> NDArray[np.float32]:
        embedding, codes = torch.from_numpy(embedding_NE[items_G]), torch.from_numpy(nearest_NL[items_G])
        measured: NDArray[np.float32] = quantizer.last_level_distances(embedding, codes).numpy()
        return measured

    fitted_N = np.ones(len(nearest_NL), np.bool_) if fit_rows is None else np.isin(np.arange(len(nearest_NL)), fit_rows)
    return reassign_last_code(nearest_NL, quantizer.codes, distances, fitted_N)


def _with_extra_level(
    quantizer: ResidualQuantizer, codes_NL: NDArray[np.int64]
) -> tuple[ResidualQuantizer, NDArray[np.int64]]:
    """Append the place inside the bucket.

    The extra codebook holds zeros: every place is equally near, so a new item, which asks for its last codes nearest
    first and equal ones in order, takes the lowest place that is free.
    """
    place_N = number_inside_buckets(codes_NL)
    if place_N.max() >= quantizer.codes:
        raise TrainingError(
            f"a bucket holds {place_N.max() + 1} items, an extra level counts to {quantizer.codes}; raise sids.codes"
        )
    books_LKD = torch.cat([quantizer.codebooks_LKD, torch.zeros_like(quantizer.codebooks_LKD[:1])])
    return ResidualQuantizer(books_LKD, quantizer.encoder), np.column_stack([codes_NL, place_N])
