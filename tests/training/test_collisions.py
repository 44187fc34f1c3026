"""Reassigning the last code makes SIDs distinct, touches nothing else, and costs no more than going item by item."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.collisions import number_inside_buckets, reassign_last_code

CODES = 5
sizes = st.tuples(st.integers(1, 12), st.integers(0, 2**16))


def problem(items: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Nearest codes of ``items`` under at most two prefixes, and all distances."""
    random = np.random.default_rng(seed)
    distance_NK = random.random((items, CODES), dtype=np.float32)
    prefix_N2 = np.column_stack([random.integers(0, 2, items), np.zeros(items, np.int64)])
    return np.column_stack([prefix_N2, distance_NK.argmin(1)]), distance_NK


def greedy_cost(codes_NL: NDArray[np.int64], distance_NK: NDArray[np.float32]) -> float:
    """First come, first served; who finds nothing keeps the nearest code."""
    taken: set[tuple[int, ...]] = set()
    cost = 0.0
    for codes, distance_K in zip(codes_NL.tolist(), distance_NK, strict=True):
        free = [code for code in np.argsort(distance_K).tolist() if (*codes[:-1], code) not in taken]
        chosen = free[0] if free else codes[-1]
        taken.add((*codes[:-1], chosen))
        cost += float(distance_K[chosen])
    return cost


@settings(deadline=None)
@given(sizes)
def test_sids_are_distinct_unless_a_group_is_larger_than_the_level(size: tuple[int, int]) -> None:
    codes_NL, distance_NK = problem(*size)
    moved_NL = reassign_last_code(codes_NL, CODES, lambda items: distance_NK[items])
    assert np.array_equal(moved_NL[:, :-1], codes_NL[:, :-1])
    for prefix in np.unique(codes_NL[:, :-1], axis=0):
        group_N = (codes_NL[:, :-1] == prefix).all(1)
        assert len(np.unique(moved_NL[group_N, -1])) == min(CODES, group_N.sum())


@settings(deadline=None)
@given(sizes)
def test_the_total_cost_is_at_most_that_of_first_come_first_served(size: tuple[int, int]) -> None:
    codes_NL, distance_NK = problem(*size)
    moved_NL = reassign_last_code(codes_NL, CODES, lambda items: distance_NK[items])
    biggest = max(np.unique(codes_NL[:, 0], return_counts=True)[1])
    if biggest <= CODES:
        cost = float(np.take_along_axis(distance_NK, moved_NL[:, -1:], 1).sum())
        assert cost <= greedy_cost(codes_NL, distance_NK) + 1e-5


@settings(deadline=None)
@given(sizes)
def test_known_items_do_not_notice_later_ones(size: tuple[int, int]) -> None:
    codes_NL, distance_NK = problem(*size)
    first_N = np.random.default_rng(size[1]).random(len(codes_NL)) < 0.6
    together = reassign_last_code(codes_NL, CODES, lambda items: distance_NK[items], first_N)
    alone = reassign_last_code(codes_NL[first_N], CODES, lambda items: distance_NK[first_N][items])
    cost = np.take_along_axis(distance_NK[first_N], together[first_N][:, -1:], 1).sum()
    assert np.isclose(cost, np.take_along_axis(distance_NK[first_N], alone[:, -1:], 1).sum(), atol=1e-5)


def test_items_of_a_bucket_are_numbered_in_order() -> None:
    codes_NL = np.array([[1, 1], [0, 1], [1, 1], [1, 1], [0, 1]])
    assert number_inside_buckets(codes_NL).tolist() == [0, 0, 1, 2, 1]
