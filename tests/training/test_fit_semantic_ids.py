"""The frozen quantiser reproduces the codes it was fitted to, collisions go as the policy says, collapse is refused."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from vector_quantize_pytorch import ResidualVQ

from service.model.quantizer import ResidualQuantizer
from training import rqvae
from training.errors import GateError, TrainingError
from training.fit_semantic_ids import Method, Policy, SidFit, fit_semantic_ids

ITEMS, LEVELS, CODES = 60, 3, 8


def embeddings(items: int = ITEMS, width: int = 12, seed: int = 0) -> NDArray[np.float32]:
    """Clusters of clusters, unit length."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(8, width))
    points = centres[random.integers(0, 8, items)] + 0.8 * random.normal(size=(items, width))
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True), np.float32)


def fit(policy: Policy = "reassign", method: Method = "rkmeans", data: NDArray[np.float32] | None = None) -> SidFit:
    data = embeddings() if data is None else data
    return fit_semantic_ids(data, method=method, levels=LEVELS, codes=CODES, policy=policy, seed=0)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rqvae, "MIN_STEPS", 60)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("method", ["rkmeans", "rqvae"])
def test_the_frozen_quantiser_reproduces_the_codes(method: Method) -> None:
    made = fit("bucket", method)
    stored = ResidualQuantizer.from_tensors(made.quantizer.tensors())
    assert np.array_equal(stored.encode(torch.from_numpy(embeddings())).numpy(), made.codes_NL)
    assert made.quantizer.embedding_width == 12


def test_projecting_keeps_the_distances_of_the_leading_directions() -> None:
    random = np.random.default_rng(0)
    data = np.asarray(random.normal(size=(ITEMS, 4)) @ random.normal(size=(4, 12)) + 3, np.float32)
    made = fit_semantic_ids(data, method="rkmeans", levels=2, codes=CODES, policy="bucket", seed=0, project_to=4)
    points = made.quantizer.project(torch.from_numpy(data))
    assert points.shape == (ITEMS, 4)
    assert torch.allclose(torch.pdist(points), torch.pdist(torch.from_numpy(data)), rtol=1e-3)
    assert made.quantizer.embedding_width == 12
    assert np.array_equal(
        ResidualQuantizer.from_tensors(made.quantizer.tensors()).encode(torch.from_numpy(data)), made.codes_NL
    )


def test_a_small_catalogue_does_not_collapse_the_rqvae() -> None:
    fit("bucket", "rqvae", embeddings(300)).report.gate(min_usage=0.9, max_collision_rate=1)


def test_the_exported_rqvae_gives_the_codes_of_the_library() -> None:
    torch.manual_seed(0)
    data = torch.from_numpy(embeddings())
    encoder = rqvae._mlp([12, 16, 8])
    library = ResidualVQ(dim=8, num_quantizers=LEVELS, codebook_size=CODES, kmeans_init=True)
    library(encoder(data)[None])
    library.eval()
    with torch.no_grad():
        expected = library(encoder(data)[None])[1][0]
    assert torch.equal(rqvae._frozen(encoder, library).encode(data), expected)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("method", ["rkmeans", "rqvae"])
def test_a_fit_repeats_itself(method: Method) -> None:
    assert np.array_equal(fit("bucket", method).codes_NL, fit("bucket", method).codes_NL)


def test_reassigning_gives_every_item_its_own_sid_at_the_same_length() -> None:
    shared, own = fit("bucket"), fit("reassign")
    assert shared.report.collision_rate > 0
    assert (own.report.collision_rate, own.report.distinct, own.report.largest_bucket) == (0, ITEMS, 1)
    assert own.codes_NL.shape == (ITEMS, LEVELS)
    assert np.array_equal(own.codes_NL[:, :-1], shared.codes_NL[:, :-1])
    assert own.report.moved_share == (own.codes_NL != shared.codes_NL).any(1).mean()
    assert own.report.residual[-1] > shared.report.residual[-1]


def test_an_extra_level_numbers_the_items_of_a_bucket() -> None:
    shared, longer = fit("bucket"), fit("extra_level")
    assert longer.quantizer.levels == LEVELS + 1
    assert longer.report.distinct == ITEMS
    assert np.array_equal(longer.codes_NL[:, :-1], shared.codes_NL)
    longer.report.gate(min_usage=0.5, max_collision_rate=0)  # the places in use do not count as usage


def test_a_new_item_asks_for_the_lowest_places_of_an_extra_level_first() -> None:
    made = fit("extra_level")
    item = torch.from_numpy(embeddings(seed=1))[0]
    prefix = made.quantizer.encode(item[None])[0, :-1].tolist()
    assert made.quantizer.last_level_preferences(item, prefix) == list(range(CODES))


def test_a_bucket_that_an_extra_level_cannot_count_is_refused() -> None:
    data = np.repeat(embeddings(20), 10, axis=0)
    with pytest.raises(TrainingError, match="raise sids.codes"):
        fit("extra_level", data=data)


def test_items_outside_the_fit_get_sids_but_do_not_move_the_codebooks() -> None:
    data = embeddings()
    known = np.arange(0, ITEMS, 2)
    part = fit_semantic_ids(
        data, method="rkmeans", levels=LEVELS, codes=CODES, policy="reassign", seed=0, fit_rows=known
    )
    alone = fit_semantic_ids(data[known], method="rkmeans", levels=LEVELS, codes=CODES, policy="reassign", seed=0)
    assert torch.equal(part.quantizer.codebooks_LKD, alone.quantizer.codebooks_LKD)
    assert part.report.distinct == ITEMS


def test_fewer_items_than_codes_are_refused() -> None:
    with pytest.raises(TrainingError, match="5 items cannot fill 8 codes"):
        fit(data=embeddings(5))


@pytest.mark.parametrize("policy", ["bucket", "reassign"])
def test_a_collapsed_fit_does_not_pass_the_gate(policy: Policy) -> None:
    # RQ-VAE-Recommender issue 47: every item got one SID; moving last codes must not hide it
    made = fit(policy, data=np.ones((40, 12), np.float32))
    assert made.report.used_before == (1, 1, 1)
    with pytest.raises(GateError, match="level 1 uses 1 of 8"):
        made.report.gate(min_usage=0.5, max_collision_rate=1)


def test_too_many_shared_sids_do_not_pass_the_gate() -> None:
    # LC-Rec issue 23
    with pytest.raises(GateError, match="share a SID"):
        fit("bucket").report.gate(min_usage=0, max_collision_rate=0)


def test_the_report_counts_what_the_codes_are() -> None:
    made = fit("bucket")
    shares = np.bincount(made.codes_NL[:, 0]) / ITEMS
    assert made.report.used[0] == (shares > 0).sum()
    assert np.isclose(made.report.entropy_bits[0], -(shares[shares > 0] * np.log2(shares[shares > 0])).sum())
    assert made.report.as_dict()["perplexity"][0] == 2 ** made.report.entropy_bits[0]
    assert len(made.report.lines()) == 2 + LEVELS
    residual = made.quantizer.encode_with_distances(torch.from_numpy(embeddings()))[1].mean(0)
    assert np.allclose(made.report.residual, residual.numpy(), atol=1e-5)


def test_fitting_gives_torch_its_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit_semantic_ids(
            np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32),
            method="rkmeans",
            levels=2,
            codes=4,
            policy="reassign",
            seed=0,
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
