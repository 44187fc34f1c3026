"""From users' sequences to batches of SIDs: windows over long histories, grouped by length, in a reproducible order.

An epoch meets every interaction as a target once. A window holds the items before its targets as context; where it
starts is drawn anew each epoch, so that an interaction is predicted after histories of every length. With item dropout
each epoch leaves out other interactions, so that the model learns what goes together and not one order by heart. The
order is a function of seed and epoch alone, so that a stopped run continues with the very next batch. It knows nothing
of models.

Shapes: B windows, N items (of the longest window, or all there are), L levels, T tokens of a title.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
class ItemTokens:
    """What the model reads of each item: its SID int [N, L], and token ids of its title int64 [N, T].

    A title that is shorter than T has -1 behind its end; T is 0 where prompts show no titles.
    """

    codes_NL: NDArray[np.integer]
    title_NT: NDArray[np.int64]

    @classmethod
    def untitled(cls, codes_NL: NDArray[np.integer]) -> "ItemTokens":
        """SIDs alone."""
        return cls(codes_NL, np.empty((len(codes_NL), 0), np.int64))

    @property
    def length_N(self) -> NDArray[np.int64]:
        """Tokens of each item."""
        return np.asarray(self.codes_NL.shape[1] + (self.title_NT >= 0).sum(1))


@dataclass(frozen=True, slots=True)
class Batch:
    """Codes int64 [B, N, L] of right-padded windows, which items are predicted [B, N], and titles int64 [B, N, T].

    Titles have -1 behind their ends, and are None where prompts show none.
    """

    codes_BNL: Tensor
    target_BN: Tensor
    title_BNT: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        title_BNT = None if self.title_BNT is None else self.title_BNT.to(device)
        return Batch(self.codes_BNL.to(device), self.target_BN.to(device), title_BNT)


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


def collate(windows: Sequence[Window], items: ItemTokens) -> Batch:
    """Look up the SIDs and titles of a batch of windows."""
    longest = max(len(window.items) for window in windows)
    item_BN = np.zeros((len(windows), longest), np.int64)
    target_BN = np.zeros((len(windows), longest), bool)
    for row, window in enumerate(windows):
        item_BN[row, : len(window.items)] = window.items
        target_BN[row, window.first_target : len(window.items)] = True
    codes_BNL = items.codes_NL[item_BN].astype(np.int64)
    batch = Batch(torch.from_numpy(codes_BNL), torch.from_numpy(target_BN))
    return replace(batch, title_BNT=_titles(windows, items, item_BN)) if items.title_NT.shape[1] else batch


def _titles(windows: Sequence[Window], items: ItemTokens, item_BN: NDArray[np.int64]) -> Tensor:
    title_BNT = items.title_NT[item_BN]
    for row, window in enumerate(windows):
        title_BNT[row, len(window.items) :] = -1
    return torch.from_numpy(title_BNT)


def num_tokens(windows: Sequence[Window], items: ItemTokens, prefix_tokens: int) -> int:
    """Tokens the model really reads for these windows, padding included."""
    codes = int(items.codes_NL.shape[1]) * max(len(window.items) for window in windows)
    titles = max(int((items.title_NT[list(window.items)] >= 0).sum()) for window in windows)
    return len(windows) * (prefix_tokens + codes + titles)
