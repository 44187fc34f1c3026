"""From users' sequences to batches of SIDs: windows over long histories, grouped by length, in a reproducible order.

An epoch meets every interaction as a target once. A window holds the items before its targets as context; where it
starts is drawn anew each epoch, so that an interaction is predicted after histories of every length. With item dropout
each epoch leaves out other interactions, so that the model learns what goes together and not one order by heart. The
order is a function of seed and epoch alone, so that a stopped run continues with the very next batch. It knows nothing
of models.

Shapes: B windows, N items in the longest window, L levels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKETED_BATCHES = 20


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive items of one user, oldest first; those from ``first_target`` on are predicted."""

    items: tuple[int, ...]
    first_target: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Codes int64 [B, N, L] of right-padded windows, and which items are predicted, bool [B, N]."""

    codes_BNL: Tensor
    target_BN: Tensor


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How windows are cut: at most ``max_items`` of history, ``stride`` targets to a window.

    ``item_dropout`` is the share of interactions that an epoch leaves out.
    """

    max_items: int
    stride: int
    batch_size: int
    seed: int
    item_dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.item_dropout < 1:
            raise ValueError(f"item dropout {self.item_dropout} must lie in 0..1, 1 excluded")
        if not 1 <= self.stride <= self.max_items or self.batch_size < 1:
            raise ValueError(f"stride {self.stride} must lie in 1..{self.max_items}, batch size above 0")

    def windows(self, sequence: Sequence[int], first_length: int) -> list[Window]:
        """Cut one sequence; the first window predicts ``first_length`` items, later ones ``stride``."""
        made: list[Window] = []
        target, end = 1, 1 + first_length
        while target < len(sequence):
            end = min(end, len(sequence))
            start = max(0, end - 1 - self.max_items)
            made.append(Window(tuple(sequence[start:end]), target - start))
            target, end = end, end + self.stride
        return made

    def epoch(self, train: Mapping[str, Sequence[int]], epoch: int) -> list[list[Window]]:
        """All batches of an epoch, in order."""
        random = np.random.default_rng((self.seed, epoch))
        windows = [
            window
            for user in sorted(train)
            for window in self.windows(self._kept(train[user], random), int(random.integers(1, self.stride + 1)))
        ]
        return self._bucketed([windows[n] for n in random.permutation(len(windows))], random)

    def total_steps(self, train: Mapping[str, Sequence[int]], epochs: int) -> int:
        """Batches of all epochs together."""
        return sum(len(self.epoch(train, epoch)) for epoch in range(epochs))

    def _kept(self, sequence: Sequence[int], random: np.random.Generator) -> Sequence[int]:
        if not self.item_dropout:
            return sequence
        kept = random.random(len(sequence)) >= self.item_dropout
        return [item for item, stays in zip(sequence, kept, strict=True) if stays]

    def _bucketed(self, windows: list[Window], random: np.random.Generator) -> list[list[Window]]:
        size = self.batch_size * BUCKETED_BATCHES
        batches: list[list[Window]] = []
        for start in range(0, len(windows), size):
            chunk = sorted(windows[start : start + size], key=lambda window: len(window.items))
            batches += [chunk[n : n + self.batch_size] for n in range(0, len(chunk), self.batch_size)]
        return [batches[n] for n in random.permutation(len(batches))]


def collate(windows: Sequence[Window], codes_NL: NDArray[np.integer]) -> Batch:
    """Look up the SIDs of a batch of windows."""
    longest = max(len(window.items) for window in windows)
    item_BN = np.zeros((len(windows), longest), np.int64)
    target_BN = np.zeros((len(windows), longest), bool)
    for row, window in enumerate(windows):
        item_BN[row, : len(window.items)] = window.items
        target_BN[row, window.first_target : len(window.items)] = True
    codes_BNL = codes_NL.astype(np.int64)[item_BN]
    return Batch(torch.from_numpy(codes_BNL), torch.from_numpy(target_BN))


def num_tokens(windows: Sequence[Window], levels: int, prefix_tokens: int) -> int:
    """Tokens the model really reads for these windows, padding included."""
    return len(windows) * (prefix_tokens + levels * max(len(window.items) for window in windows))
