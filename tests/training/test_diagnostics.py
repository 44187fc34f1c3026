"""The diagnostics see a collapse, a spread and a likeness where there is one, and not where there is none."""

import numpy as np
import pytest
import torch

from service.model.semantic_ids import SidSpace
from training.grounding.diagnostics import effective_rank, principal_plane, row_diagnostics, singular_shares

SPACE = SidSpace(2, 16, 100)
VOCABULARY = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_collapse_has_cosines_near_one_and_independent_rows_have_not() -> None:
    collapsed = row_diagnostics(torch.ones(32, 24) + 0.01 * normal(32, 24), SPACE, VOCABULARY)
    spread = row_diagnostics(normal(32, 24), SPACE, VOCABULARY)
    assert min(collapsed["cosine_within"]) > 0.99 and collapsed["cosine_across"] > 0.99
    assert max(spread["cosine_within"]) < 0.1 and abs(spread["cosine_across"]) < 0.1


def test_effective_rank_counts_equally_strong_directions() -> None:
    rows = torch.cat([torch.eye(24)[:5], -torch.eye(24)[:5]])
    assert effective_rank(singular_shares(rows)) == pytest.approx(5, rel=1e-4)
    line = torch.arange(10.0)[:, None] * torch.ones(24)
    assert effective_rank(singular_shares(line)) == pytest.approx(1, abs=1e-3)


def test_rsa_is_one_for_a_rotated_codebook_and_small_for_another() -> None:
    book = normal(2, 16, 8)
    rotation, _ = torch.linalg.qr(normal(24, 8, seed=3))
    same = row_diagnostics((book @ rotation.T).flatten(0, 1), SPACE, VOCABULARY, book.numpy())
    other = row_diagnostics(normal(32, 24, seed=4), SPACE, VOCABULARY, book.numpy())
    assert all(level["pearson"] > 0.999 and level["spearman"] > 0.999 for level in same["rsa"])
    assert all(abs(level["pearson"]) < 0.4 for level in other["rsa"])


def test_identical_rows_give_finite_figures() -> None:
    report = row_diagnostics(torch.ones(32, 24), SPACE, VOCABULARY, np.ones((2, 16, 8), np.float32))
    assert report["rsa"] == [{"pearson": 0.0, "spearman": 0.0}] * 2
    assert np.isfinite([report["effective_rank"], report["norm"], *report["spectrum"]]).all()


def test_the_picture_shows_the_two_widest_directions() -> None:
    rows = normal(50, 24) * torch.tensor([10.0, 5.0] + [0.1] * 22)
    plane = principal_plane(rows)
    assert plane.shape == (50, 2)
    assert plane.var(0).sum() > 0.99 * rows.var(0).sum()
