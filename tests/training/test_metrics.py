"""Metrics by hand and by brute force, and the bootstrap's laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.bootstrap import interval, paired_difference, ratio_interval
from training.metrics import MISSED, gains, hits, summary, target_ranks


def test_by_hand() -> None:
    ranks = target_ranks([[5, 3, 9], [1, 2, 3], [7]], [3, 4, 7])
    assert ranks.tolist() == [1, MISSED, 0]
    made = summary(ranks, (1, 2))
    assert made["recall@1"] == pytest.approx(1 / 3)
    assert made["recall@2"] == pytest.approx(2 / 3)
    assert made["ndcg@1"] == pytest.approx(1 / 3)
    assert made["ndcg@2"] == pytest.approx((1 + 1 / math.log2(3)) / 3)


@given(st.lists(st.permutations(range(8)), min_size=1, max_size=5), st.integers(0, 9), st.integers(1, 8))
def test_against_brute_force(lists: list[list[int]], target: int, k: int) -> None:
    ranks = target_ranks(lists, [target] * len(lists))
    for found, items in zip(hits(ranks, k), lists, strict=True):
        assert found == float(target in items[:k])
    for gain, items in zip(gains(ranks, k), lists, strict=True):
        ideal = sum(1 / math.log2(place + 2) for place, item in enumerate(items[:k]) if item == target)
        assert gain == pytest.approx(ideal)


def test_a_hit_is_the_item_and_nothing_else() -> None:
    assert target_ranks([[1, 2]], [3]).tolist() == [MISSED]


def test_no_examples_is_an_error_not_a_nan() -> None:
    with pytest.raises(ValueError, match="no examples"):
        summary(np.array([], np.int64), (1,))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = interval((random.random(200) < 0.3).astype(float), samples=300, seed=trial)
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_the_interval_follows_the_normal_law_and_the_seed() -> None:
    values = (np.arange(1000) % 10 == 0).astype(float)
    found = interval(values, samples=2000, seed=1)
    spread = 1.96 * math.sqrt(0.1 * 0.9 / 1000)
    assert found.mean == pytest.approx(0.1)
    assert (found.high - found.low) / 2 == pytest.approx(spread, rel=0.15)
    assert found == interval(values, samples=2000, seed=1)
    assert found != interval(values, samples=2000, seed=2)


def test_a_paired_difference_is_tighter_than_two_intervals() -> None:
    random = np.random.default_rng(0)
    theirs = (random.random(500) < 0.5).astype(float)
    ours = np.maximum(theirs, random.random(500) < 0.05)
    found = paired_difference(ours, theirs, samples=1000, seed=0)
    assert found.low > 0
    assert interval(ours, samples=1000, seed=0).low < interval(theirs, samples=1000, seed=0).high
    with pytest.raises(ValueError, match="paired"):
        paired_difference(ours, theirs[:1], samples=10, seed=0)


def test_a_ratio_of_counts_keeps_users_in_pairs_and_never_divides_by_nothing() -> None:
    counts_U = np.random.default_rng(0).poisson(2.0, 200)
    twice = ratio_interval(2 * counts_U, counts_U, samples=200, seed=0)
    assert twice.as_list() == pytest.approx([2.0, 2.0, 2.0])
    other = ratio_interval(counts_U[::-1], counts_U, samples=200, seed=0)
    assert other.low < other.mean == 1.0 < other.high
    assert ratio_interval(counts_U, 0 * counts_U, samples=20, seed=0).mean == counts_U.sum()
    with pytest.raises(ValueError, match="paired values"):
        ratio_interval(counts_U[1:], counts_U, samples=20, seed=0)
