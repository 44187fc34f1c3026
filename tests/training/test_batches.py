"""Every interaction is predicted once an epoch, from what came before it and nothing else, in an order that returns."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.batches import BatchPlan, ItemTokens, Window, collate, num_tokens


@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_each_item_after_the_first_is_a_target_exactly_once(length: int, history: int, stride: int, epoch: int) -> None:
    plan = BatchPlan(history, min(stride, history), 4, seed=1)
    sequence = tuple(range(100, 100 + length))
    targets = Counter(
        item
        for batch in plan.epoch({"u": sequence}, epoch)
        for window in batch
        for item in window.items[window.first_target :]
    )
    assert targets == Counter(sequence[1:])


@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 12))
def test_windows_are_contiguous_and_no_longer_than_the_prompt_allows(length: int, history: int, stride: int) -> None:
    plan = BatchPlan(history, min(stride, history), 4, seed=1)
    for window in plan.windows(tuple(range(length)), 1):
        assert window.items == tuple(range(window.items[0], window.items[0] + len(window.items)))
        assert len(window.items) <= history + 1
        assert window.first_target >= 1


def test_users_with_one_item_predict_nothing() -> None:
    assert BatchPlan(5, 5, 2, seed=0).epoch({"u": (1,), "v": ()}, 0) == []


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    train = {f"u{n}": tuple(range(n % 7 + 2)) for n in range(50)}
    plan = BatchPlan(5, 5, 4, seed=3)
    assert plan.epoch(train, 2) == plan.epoch(dict(reversed(train.items())), 2)
    assert plan.epoch(train, 2) != plan.epoch(train, 3)
    assert plan.total_steps(train, 3) == sum(len(plan.epoch(train, epoch)) for epoch in range(3))


def test_collating_marks_targets_and_pads_on_the_right() -> None:
    codes = np.array([[0, 1], [2, 3], [4, 5]])
    windows = [Window((1, 2), 1), Window((0, 1, 2), 1)]
    items = ItemTokens.untitled(codes)
    batch = collate(windows, items)
    assert batch.codes_BNL[0].tolist() == [[2, 3], [4, 5], [0, 1]]
    assert torch.equal(batch.target_BN, torch.tensor([[False, True, False], [False, True, True]]))
    assert batch.title_BNT is None
    assert num_tokens(windows, items, 4) == 2 * (4 + 2 * 3)


def test_titles_are_looked_up_and_padding_items_have_none() -> None:
    items = ItemTokens(np.array([[0, 1], [2, 3]]), np.array([[7, 8, -1], [9, -1, -1]]))
    windows = [Window((1,), 0), Window((0, 1), 1)]
    batch = collate(windows, items)
    assert batch.title_BNT is not None
    assert batch.title_BNT.tolist() == [[[9, -1, -1], [-1, -1, -1]], [[7, 8, -1], [9, -1, -1]]]
    assert items.length_N.tolist() == [4, 3]
    assert num_tokens(windows, items, 4) == 2 * (4 + 2 * 2 + 3)


def test_item_dropout_leaves_out_other_items_each_epoch_and_keeps_their_order() -> None:
    plan = BatchPlan(200, 200, 4, seed=0, item_dropout=0.25)
    train = {"u": tuple(range(200))}

    def items(epoch: int) -> list[int]:
        return [item for batch in plan.epoch(train, epoch) for window in batch for item in window.items]

    first = items(0)
    assert sorted(set(first)) == list(dict.fromkeys(first))
    assert 120 <= len(set(first)) <= 175
    assert set(first) != set(items(1))
    assert items(0) == first
    with pytest.raises(ValueError, match="item dropout 1"):
        BatchPlan(5, 5, 4, seed=0, item_dropout=1.0)


def test_a_stride_beyond_the_history_is_refused() -> None:
    with pytest.raises(ValueError, match="stride 6"):
        BatchPlan(5, 6, 4, seed=0)


def test_batches_hold_windows_of_like_length_so_that_little_is_padding() -> None:
    random = np.random.default_rng(0)
    train = {f"u{n}": list(range(int(length))) for n, length in enumerate(random.integers(2, 21, 600))}
    plan = BatchPlan(20, 20, 8, seed=0)

    def padding(batches: list[list[Window]]) -> float:
        lengths = [[len(window.items) for window in batch] for batch in batches]
        read = sum(len(row) * max(row) for row in lengths)
        return 1 - sum(map(sum, lengths)) / read

    batches = plan.epoch(train, 0)
    windows = [window for batch in batches for window in batch]
    shuffled = [windows[n] for n in random.permutation(len(windows))]
    unsorted = [shuffled[n : n + 8] for n in range(0, len(shuffled), 8)]
    assert padding(unsorted) > 0.25
    assert padding(batches) < 0.3 * padding(unsorted)
