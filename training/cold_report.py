"""What an answer with new items in it is worth: to users, to items, and to the items that were known.

A few new items carry most of the users who came to them, so every figure on new items is given over users and over
items (the mean of each item's hit rate), each with a bootstrap interval over its own kind.

Shapes: U users, K places.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.bootstrap import interval, paired_difference
from training.data import Example
from training.metrics import gains, hits, target_ranks


@dataclass(frozen=True, slots=True)
class ColdReport:
    """How to count: the first ``k`` places, ``samples`` bootstrap resamples from ``seed``."""

    k: int
    samples: int
    seed: int

    def cold(self, lists: Sequence[Sequence[int]], examples: Sequence[Example]) -> dict[str, Any]:
        """Hit rate and NDCG of users whose next item is new, over users and over items: ``[mean, low, high]``."""
        targets = [example.target for example in examples]
        rank_U = target_ranks(lists, targets)
        by_item: dict[int, list[float]] = defaultdict(list)
        for target, hit in zip(targets, hits(rank_U, self.k), strict=True):
            by_item[target].append(float(hit))
        over_items = np.array([np.mean(found) for found in by_item.values()])
        return {
            "users": len(examples),
            "items": len(by_item),
            f"hit_rate@{self.k}_over_users": self._interval(hits(rank_U, self.k)),
            f"hit_rate@{self.k}_over_items": self._interval(over_items),
            f"ndcg@{self.k}_over_users": self._interval(gains(rank_U, self.k)),
        }

    def warm(
        self, lists: Sequence[Sequence[int]], without: Sequence[Sequence[int]], examples: Sequence[Example]
    ) -> dict[str, Any]:
        """Users whose next item is known: with new items in the lists, without them, and the relative loss."""
        targets = [example.target for example in examples]
        ours_U, bare_U = (hits(target_ranks(found, targets), self.k) for found in (lists, without))
        difference = paired_difference(ours_U, bare_U, samples=self.samples, seed=self.seed).as_list()
        bare = max(float(bare_U.mean()), 1e-12)
        return {
            "users": len(examples),
            f"hit_rate@{self.k}": self._interval(ours_U),
            f"hit_rate@{self.k}_without_new_items": self._interval(bare_U),
            "relative_change": [value / bare for value in difference],
        }

    def exposure(self, lists: Sequence[Sequence[int]], is_new_N: NDArray[np.bool_]) -> dict[str, float]:
        """How much room new items take, how many of them are ever shown, and what the most shown one takes of it."""
        shown = Counter(item for items in lists for item in items[: self.k] if is_new_N[item])
        slots = sum(len(items[: self.k]) for items in lists)
        total = sum(shown.values())
        return {
            "share_of_slots": total / max(slots, 1),
            "new_items_shown": len(shown) / max(int(is_new_N.sum()), 1),
            "most_shown_item": max(shown.values(), default=0) / max(total, 1),
        }

    def _interval(self, value_U: NDArray[np.float64]) -> list[float]:
        if not len(value_U):
            return [0.0, 0.0, 0.0]
        return interval(value_U, samples=self.samples, seed=self.seed).as_list()
