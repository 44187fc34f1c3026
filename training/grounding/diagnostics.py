"""What new rows look like: how far apart, how many directions, how like the codebooks (GTI's figures, with numbers).

Taken at the start, after grounding and after fine-tuning alike. A collapsed initialisation shows as cosines near 1 and
an effective rank near 1; grounding as similarity structure shared with the codebooks (RSA). It judges nothing.

Shapes: L levels, K codes, D model width, E codebook width.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from service.model.semantic_ids import SidSpace

SPECTRUM = 64


def row_diagnostics(
    rows: Tensor, space: SidSpace, vocabulary_VD: Tensor, codebooks_LKE: NDArray[np.float32] | None = None
) -> dict[str, Any]:
    """Figures of rows float [L * K, D] of the new tokens, as plain data.

    ``cosine_within`` and ``cosine_across`` are mean pairwise cosines inside a level and between levels, of the rows as
    they are; ``effective_rank`` and ``spectrum`` (shares of the largest singular values) are of the rows around their
    mean; ``rsa`` compares cosine matrices of rows and codebook vectors level by level.
    """
    rows_LKD = rows.detach().float().view(space.levels, space.codes, -1)
    spectrum = singular_shares(rows_LKD.flatten(0, 1))
    vocabulary = vocabulary_VD.float()
    report: dict[str, Any] = {
        "cosine_within": [_mean_cosine(level_KD, level_KD) for level_KD in rows_LKD],
        "cosine_across": _across(rows_LKD),
        "effective_rank": effective_rank(spectrum),
        "spectrum": spectrum[:SPECTRUM].tolist(),
        "norm": float(rows_LKD.norm(dim=-1).mean()),
        "vocabulary_norm": float(vocabulary.norm(dim=-1).mean()),
    }
    if codebooks_LKE is not None:
        report["rsa"] = [
            similarity_agreement(level_KD[: len(book_KE)], torch.from_numpy(book_KE))  # spare codes have no vector
            for level_KD, book_KE in zip(rows_LKD, codebooks_LKE, strict=True)
        ]
    return report


def singular_shares(rows: Tensor) -> Tensor:
    """Singular values of the rows around their mean, as shares of their sum, descending."""
    values: Tensor = torch.linalg.svdvals(rows - rows.mean(0))
    shares: Tensor = values / values.sum().clamp(min=1e-12)
    return shares


def effective_rank(shares: Tensor) -> float:
    """Exp of the entropy of normalised singular values."""
    positive = shares[shares > 0]
    return float(torch.exp(-(positive * positive.log()).sum()))


def similarity_agreement(rows_KD: Tensor, codebook_KE: Tensor) -> dict[str, float]:
    """RSA: Pearson and Spearman between the two cosine matrices, each around its mean vector; 0 for constant ones."""
    pair = torch.triu_indices(len(rows_KD), len(rows_KD), 1)
    a, b = (_cosines(x, x)[pair[0], pair[1]].numpy() for x in (_centred(rows_KD), _centred(codebook_KE)))
    if a.std() < 1e-9 or b.std() < 1e-9:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": float(pearsonr(a, b).statistic), "spearman": float(spearmanr(a, b).statistic)}


def principal_plane(rows: Tensor) -> Tensor:
    """The rows in the plane of their two largest principal components, float32 [rows, 2], for a picture."""
    centred = _centred(rows.detach().float())
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    plane: Tensor = centred @ directions[:2].T
    return plane


def _across(rows_LKD: Tensor) -> float:
    pairs = [(a, b) for a in range(len(rows_LKD)) for b in range(a)]
    means = [float(_cosines(rows_LKD[a], rows_LKD[b]).mean()) for a, b in pairs]
    return float(np.mean(means)) if means else 0.0


def _mean_cosine(a_KD: Tensor, b_KD: Tensor) -> float:
    """Mean over pairs of different rows."""
    codes = len(a_KD)
    total = float(_cosines(a_KD, b_KD).sum()) - codes
    return total / max(codes * (codes - 1), 1)


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.normalize(a.float(), dim=-1) @ torch.nn.functional.normalize(b.float(), dim=-1).T


def _centred(rows: Tensor) -> Tensor:
    return rows.float() - rows.float().mean(0)
