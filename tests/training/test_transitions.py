"""The linear model of the next item against its definition, and what it knows that co-occurrence does not."""

import numpy as np
import pytest

from training.transitions import HORIZON, transitions

TRAIN = {"b": (3, 1, 0, 2), "a": (0, 1, 2, 0), "c": (2,), "d": (2, 1, 4)}
ITEMS = 6


def by_hand(train: dict[str, tuple[int, ...]], decay: float, ridge: float) -> np.ndarray:
    before, after = [], []
    for sequence in train.values():
        for step in range(1, len(sequence)):
            row, target = np.zeros(ITEMS), np.zeros(ITEMS)
            for distance in range(1, min(step, HORIZON) + 1):
                row[sequence[step - distance]] += decay ** (distance - 1)
            target[sequence[step]] = 1.0
            before.append(row)
            after.append(target)
    s, t = np.array(before), np.array(after)
    gram = s.T @ s
    wanted: np.ndarray = np.linalg.solve(gram + ridge * np.diag(gram).mean() * np.eye(ITEMS), s.T @ t)
    return wanted


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_it_is_the_least_squares_of_the_next_item(decay: float) -> None:
    found = transitions(TRAIN, ITEMS, decay=decay, ridge=0.3)
    assert found.dtype == np.float32
    assert found == pytest.approx(by_hand(TRAIN, decay, 0.3), abs=1e-5)
    assert not found[5].any() and not found[:, 5].any()


def test_items_beyond_the_horizon_count_for_nothing() -> None:
    long = tuple(n % 4 for n in range(HORIZON + 9))
    assert transitions({"a": long}, ITEMS, decay=1.0, ridge=0.1) == pytest.approx(
        by_hand({"a": long}, 1.0, 0.1), abs=1e-4
    )


def test_it_knows_which_of_two_comes_first() -> None:
    found = transitions({f"u{n}": (0, 1) for n in range(5)}, 2, decay=0.9, ridge=0.1)
    assert found[0, 1] > 0.5 and found[1, 0] == 0.0


def test_sequences_of_one_item_say_nothing() -> None:
    with pytest.raises(ValueError, match="nothing follows anything"):
        transitions({"a": (0,), "b": ()}, 2, decay=0.9, ridge=0.1)
