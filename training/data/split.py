"""Leave-last-out by time: the last event of a user is tested, the one before validates, the rest trains.

A user with one or two events is trained on only. The test history includes the validation target, as it would be
known by then; a target is never in its own history by position, though an earlier repeat of the same item may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Example:
    """Predict item number ``target`` after ``history`` (oldest first)."""

    user_id: str
    history: tuple[int, ...]
    target: int


@dataclass(frozen=True, slots=True)
class Split:
    """Training sequences per user, validation and test examples."""

    train: Mapping[str, tuple[int, ...]]
    valid: tuple[Example, ...]
    test: tuple[Example, ...]

    @property
    def repeat_share(self) -> float:
        """The share of validation targets that the user had met before (test targets are not looked at)."""
        if not self.valid:
            return 0.0
        return sum(example.target in example.history for example in self.valid) / len(self.valid)


def leave_last_out(dataset: Dataset, *, min_history: int = 1) -> Split:
    """Split every user's sequence; who has fewer than ``min_history`` events before both targets is trained on only.

    Raises:
        ValueError: ``min_history`` is less than 1, so a target would be predicted from nothing.
    """
    if min_history < 1:
        raise ValueError(f"min_history is {min_history}, must be at least 1")
    train: dict[str, tuple[int, ...]] = {}
    valid, test = [], []
    for user, sequence in dataset.sequences.items():
        if len(sequence) < min_history + 2:
            train[user] = sequence
            continue
        train[user] = sequence[:-2]
        valid.append(Example(user, sequence[:-2], sequence[-2]))
        test.append(Example(user, sequence[:-1], sequence[-1]))
    return Split(train, tuple(valid), tuple(test))


def popularity(split: Split, num_items: int) -> NDArray[np.int64]:
    """How often each item occurs in the training sequences, int64 [N]."""
    events = [item for sequence in split.train.values() for item in sequence]
    return np.bincount(np.array(events, np.int64), minlength=num_items).astype(np.int64)


def cold_items_by_time(dataset: Dataset, share: float) -> NDArray[np.int64]:
    """The newest ``share`` (0 to 1) of items by their first event, int64 ascending; items without events are newest.

    Raises:
        ValueError: ``share`` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, must be between 0 and 1")
    first = np.full(len(dataset.items), np.inf)
    for user, sequence in dataset.sequences.items():
        np.minimum.at(first, np.array(sequence, np.int64), np.array(dataset.timestamps[user]))
    newest = np.argsort(first, kind="stable")[::-1][: round(share * len(first))]
    return np.sort(newest).astype(np.int64)
