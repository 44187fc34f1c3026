"""SIDs of text and behaviour: who is used together lies together, and new items still need nothing but text."""

import numpy as np
import pytest
import torch

from training.behaviour import behaviour_vectors, fit_with_behaviour
from training.config import SidRecipe

ITEMS = 48


def two_worlds() -> dict[str, tuple[int, ...]]:
    """Users stay among the even items or among the odd ones."""
    random = np.random.default_rng(0)
    return {f"u{n}": tuple((2 * random.permutation(ITEMS // 2)[:12] + n % 2).tolist()) for n in range(80)}


def texts() -> np.ndarray:
    made = np.random.default_rng(1).normal(size=(ITEMS, 12)).astype(np.float32)
    made[:, 0] += np.where(np.arange(ITEMS) % 2, 1.5, -1.5)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


def test_items_of_one_world_point_the_same_way() -> None:
    cosine = (vectors := behaviour_vectors(two_worlds(), ITEMS, 0)) @ vectors.T
    same = np.arange(ITEMS)[:, None] % 2 == np.arange(ITEMS)[None] % 2
    assert cosine[same & ~np.eye(ITEMS, dtype=bool)].mean() > cosine[~same].mean() + 0.05


def test_unused_items_have_no_behaviour() -> None:
    assert np.allclose(behaviour_vectors(two_worlds(), ITEMS + 3, 0)[ITEMS:], 0.0)


@pytest.mark.parametrize("method", ["rkmeans", "rqvae"])
def test_the_quantiser_takes_text_alone(method: str) -> None:
    part = SidRecipe.model_validate({"method": method, "levels": 2, "codes": 8, "behaviour": 0.5})
    fit = fit_with_behaviour(texts(), two_worlds(), part, seed=0)
    assert fit.quantizer.embedding_width == 12
    assert fit.codes_NL.shape == (ITEMS, 2)
    assert fit.quantizer.encode(torch.from_numpy(texts())).shape == (ITEMS, 2)


def test_text_alone_finds_the_world_of_a_new_item() -> None:
    part = SidRecipe(method="rkmeans", levels=1, codes=2, policy="bucket", behaviour=0.9)
    fit = fit_with_behaviour(texts(), two_worlds(), part, seed=0)
    found = fit.quantizer.encode(torch.from_numpy(texts()))[:, 0].numpy()
    agreement = (found == fit.codes_NL[:, 0]).mean()
    assert agreement > 0.7


def test_it_is_deterministic() -> None:
    part = SidRecipe(levels=2, codes=8, behaviour=0.5)
    one, other = (fit_with_behaviour(texts(), two_worlds(), part, seed=3) for _ in range(2))
    assert np.array_equal(one.codes_NL, other.codes_NL)
