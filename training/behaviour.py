"""Semantic IDs from text and behaviour together: items that follow each other in histories get nearby codes.

Behaviour vectors are a truncated SVD of positive pointwise mutual information of items close in training sequences.
A linear map from text predicts them, and becomes the quantiser's encoder: items that nobody used, today or later, get
their SID from text alone. It reads training sequences only.

Shapes: N items, E text width, B behaviour width, D = E + B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import svds
from torch import Tensor

from service.model.quantizer import ResidualQuantizer
from training.config import SidRecipe
from training.fit_semantic_ids import SidFit, fit_semantic_ids

REACH = 10
WIDTH = 64
MIN_EVENTS = 3
RIDGE = 1.0
_SMOOTHED = 0.75


def fit_with_behaviour(
    embedding_NE: NDArray[np.float32], train: Mapping[str, Sequence[int]], part: SidRecipe, seed: int
) -> SidFit:
    """SIDs of text and behaviour, and a quantiser that takes text."""
    events_N = np.bincount(np.concatenate([np.array(s, np.int64) for s in train.values()]), minlength=len(embedding_NE))
    known_N = events_N >= MIN_EVENTS
    behaviour_NB = behaviour_vectors(train, len(embedding_NE), seed)
    map_EB = _ridge(embedding_NE[known_N], behaviour_NB[known_N])
    behaviour_NB = np.where(known_N[:, None], behaviour_NB, embedding_NE @ map_EB)
    text_share, behaviour_share = np.sqrt(1 - part.behaviour), np.sqrt(part.behaviour)
    joint_ND = np.hstack([text_share * embedding_NE, behaviour_share * behaviour_NB]).astype(np.float32)
    fit = fit_semantic_ids(
        joint_ND, method=part.method, levels=part.levels, codes=part.codes, policy=part.policy, seed=seed
    )
    encoder_ED = np.hstack([text_share * np.eye(embedding_NE.shape[1]), behaviour_share * map_EB]).astype(np.float32)
    return replace(fit, quantizer=_behind(torch.from_numpy(encoder_ED.T.copy()), fit.quantizer))


def _behind(map_DE: Tensor, quantizer: ResidualQuantizer) -> ResidualQuantizer:
    """The quantiser with a linear map before it; an encoder of its own takes the map into its first layer."""
    if not quantizer.encoder:
        return replace(quantizer, encoder=((map_DE, torch.zeros(len(map_DE))),))
    (weight, bias), *rest = quantizer.encoder
    return replace(quantizer, encoder=((weight @ map_DE, bias), *rest))


def behaviour_vectors(train: Mapping[str, Sequence[int]], items: int, seed: int) -> NDArray[np.float64]:
    """Unit vectors [N, B] of items close in sequences; zero where an item has no neighbours."""
    association = _positive_information(_nearby(train, items))
    width = min(WIDTH, items - 2)
    left_NB, strength_B, _ = svds(association, k=width, random_state=seed)
    vector_NB = left_NB * np.sqrt(strength_B)
    norm_N = np.linalg.norm(vector_NB, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.where(norm_N > 1e-6, vector_NB / np.maximum(norm_N, 1e-6), 0.0)
    return unit


def _nearby(train: Mapping[str, Sequence[int]], items: int) -> sparse.csr_matrix:
    """How often two items lie at most `REACH` places apart, nearer ones counting more, symmetric [N, N]."""
    total = sparse.csr_matrix((items, items))
    for distance in range(1, REACH + 1):
        before = np.concatenate([np.array(s[:-distance], np.int64) for s in train.values()])
        after = np.concatenate([np.array(s[distance:], np.int64) for s in train.values()])
        weight = np.full(len(before), 1 / distance)
        total = total + sparse.csr_matrix((weight, (before, after)), shape=(items, items))
    return total + total.T


def _positive_information(count_NN: sparse.csr_matrix) -> sparse.csr_matrix:
    rows_N = np.asarray(count_NN.sum(1)).ravel()
    share_N = rows_N**_SMOOTHED / max(float((rows_N**_SMOOTHED).sum()), 1e-12)
    found = count_NN.tocoo()
    information = np.log(found.data / np.maximum(rows_N[found.row] * share_N[found.col], 1e-12))
    return sparse.csr_matrix((np.maximum(information, 0.0), (found.row, found.col)), shape=count_NN.shape)


def _ridge(x_ME: NDArray[np.float32], y_MB: NDArray[np.float64]) -> NDArray[np.float64]:
    width = x_ME.shape[1]
    solved = np.linalg.solve(x_ME.T @ x_ME + RIDGE * np.eye(width), x_ME.T @ y_MB)
    return np.asarray(solved, np.float64)
