"""Calibration finds the relation that made the data, and says so when there is nothing to find."""

import numpy as np
import pytest

from training.new_item_fit import Trials, fit

PLANTED = np.array([0.8, 0.4, -1.5])


def planted(users: int = 3000, items: int = 30, seed: int = 0) -> Trials:
    random = np.random.default_rng(seed)
    feature = np.concatenate([random.normal(-3, 1.5, (users, items, 2)), np.ones((users, items, 1))], -1)
    chance = 1 / (1 + np.exp(-feature @ PLANTED))
    return Trials(feature, random.random((users, items)) < chance, np.ones((users, items), bool), np.ones(users))


def test_a_planted_relation_is_recovered() -> None:
    assert fit(planted()).coefficient_F == pytest.approx(PLANTED, abs=0.15)


def test_pairs_that_are_no_trials_do_not_count() -> None:
    trials = planted()
    spoilt = trials.is_next_UM.copy()
    spoilt[:, :5] = True
    open_UM = np.ones_like(spoilt)
    open_UM[:, :5] = False
    found = fit(Trials(trials.feature_UMF, spoilt, open_UM, trials.weight_U))
    assert found.coefficient_F == pytest.approx(PLANTED, abs=0.2)


def test_a_weighted_sample_stands_for_the_whole() -> None:
    trials = planted(users=6000)
    hit_U = np.asarray(trials.is_next_UM.any(1))
    taken = hit_U | (np.arange(len(hit_U)) % 3 == 0)
    weight = np.where(hit_U, 1.0, 3.0)[taken]
    sampled = Trials(trials.feature_UMF[taken], trials.is_next_UM[taken], trials.open_UM[taken], weight)
    assert fit(sampled).coefficient_F == pytest.approx(fit(trials).coefficient_F, abs=0.15)


def test_the_likelihood_prefers_the_feature_that_matters() -> None:
    trials = planted()
    blurred = trials.feature_UMF.copy()
    blurred[..., 0] = np.random.default_rng(1).normal(size=blurred.shape[:2])
    assert fit(trials).loss < fit(Trials(blurred, trials.is_next_UM, trials.open_UM, trials.weight_U)).loss


def test_nobody_came_to_a_new_item() -> None:
    trials = planted()
    nothing = np.zeros_like(trials.is_next_UM)
    with pytest.raises(ValueError, match="nothing to fit on"):
        fit(Trials(trials.feature_UMF, nothing, trials.open_UM, trials.weight_U))
