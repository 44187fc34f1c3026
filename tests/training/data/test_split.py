"""Leave-last-out loses nothing and leaks nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data import CatalogItem, Dataset, leave_last_out, popularity
from training.data.split import cold_items_by_time

histories = st.dictionaries(st.text(min_size=1, max_size=3), st.lists(st.integers(0, 9), min_size=1, max_size=8))


def dataset(sequences: dict[str, list[int]]) -> Dataset:
    items = tuple(CatalogItem(str(n), f"title {n}") for n in range(10))
    timestamps = {user: tuple(float(n) for n in range(len(events))) for user, events in sequences.items()}
    return Dataset("toy", items, {user: tuple(events) for user, events in sequences.items()}, timestamps, "")


@given(histories)
def test_train_valid_and_test_put_together_are_the_sequence(sequences: dict[str, list[int]]) -> None:
    split = leave_last_out(dataset(sequences))
    valid = {example.user_id: example for example in split.valid}
    test = {example.user_id: example for example in split.test}
    for user, sequence in sequences.items():
        if len(sequence) < 3:
            assert split.train[user] == tuple(sequence) and user not in valid and user not in test
        else:
            assert (*split.train[user], valid[user].target, test[user].target) == tuple(sequence)


@given(histories)
def test_idgenrec_1_a_target_is_never_in_its_own_history_by_position(sequences: dict[str, list[int]]) -> None:
    split = leave_last_out(dataset(sequences))
    for example in (*split.valid, *split.test):
        sequence = sequences[example.user_id]
        assert len(example.history) < len(sequence)
        assert tuple(sequence[: len(example.history)]) == example.history
        assert sequence[len(example.history)] == example.target


def test_recbole_1823_repeat_targets_are_counted_not_hidden() -> None:
    split = leave_last_out(dataset({"u": [1, 2, 1, 3], "v": [4, 5, 6, 7]}))
    assert split.repeat_share == 0.5


def test_who_has_too_short_a_history_is_trained_on_only() -> None:
    data = dataset({"short": [1, 2, 3], "long": [1, 2, 3, 4]})
    split = leave_last_out(data, min_history=2)
    assert split.train == {"short": (1, 2, 3), "long": (1, 2)}
    assert [example.user_id for example in (*split.valid, *split.test)] == ["long", "long"]
    with pytest.raises(ValueError, match="min_history is 0"):
        leave_last_out(data, min_history=0)


def test_popularity_counts_training_events_only() -> None:
    split = leave_last_out(dataset({"u": [1, 1, 2, 3], "v": [1, 9]}))
    assert popularity(split, 10).tolist() == [0, 3, 0, 0, 0, 0, 0, 0, 0, 1]


def test_cold_items_are_the_newest() -> None:
    data = dataset({"u": [0, 1, 2, 3, 4, 5, 6, 7, 8], "v": [8]})
    assert np.array_equal(cold_items_by_time(data, 0.2), [7, 9])
    assert cold_items_by_time(data, 0).tolist() == []
    assert cold_items_by_time(data, 1).tolist() == list(range(10))
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        cold_items_by_time(data, -0.1)


def test_equal_content_has_an_equal_fingerprint() -> None:
    assert dataset({"u": [1, 2], "v": [3]}).fingerprint == dataset({"v": [3], "u": [1, 2]}).fingerprint
    assert dataset({"u": [1, 2]}).fingerprint != dataset({"u": [2, 1]}).fingerprint
