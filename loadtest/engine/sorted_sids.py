"""The SIDs that exist as sorted numbers: children by binary search, written apart from the engine's trie on purpose.

What the contenders without a trie of ours are constrained by, and what every answer is checked against. A SID is one
int64, its codes the digits in base K.

Shapes: N SIDs, L levels, R prefixes, E children of all of them.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from service.model.semantic_ids import Sid, SidSpace


class SortedSids:
    """Prefix numbers of every length, ascending."""

    def __init__(self, codes_NL: NDArray[np.integer], space: SidSpace) -> None:
        powers = space.codes ** np.arange(space.levels - 1, -1, -1, dtype=np.int64)
        whole = np.unique(codes_NL.astype(np.int64) @ powers)
        self.codes = space.codes
        self.levels = space.levels
        self._prefixes = [_prefixes(whole, int(power)) for power in powers]

    def __len__(self) -> int:
        return len(self._prefixes[-1])

    def expand(self, level: int, prefix_R: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Children of prefixes of length ``level``: ``(row_E, prefix_E)``, the child prefixes one longer."""
        longer = self._prefixes[level]
        first_R = np.searchsorted(longer, prefix_R * self.codes)
        count_R = np.searchsorted(longer, (prefix_R + 1) * self.codes) - first_R
        row_E = np.repeat(np.arange(len(prefix_R)), count_R)
        place_E = np.arange(len(row_E)) + (first_R - (np.cumsum(count_R) - count_R))[row_E]
        return row_E, longer[place_E]

    def children(self, prefix: Sid) -> NDArray[np.int64]:
        """The codes that may follow a prefix, ascending."""
        _, prefix_E = self.expand(len(prefix), np.array([self.number(prefix)], np.int64))
        return prefix_E % self.codes

    def number(self, prefix: Sid) -> int:
        """A prefix as a number."""
        number = 0
        for code in prefix:
            number = number * self.codes + code
        return number

    def sid(self, number: int) -> Sid:
        """The SID of a number."""
        return tuple(number // self.codes**power % self.codes for power in range(self.levels - 1, -1, -1))

    def slots(self, sids: Iterable[Sid]) -> NDArray[np.int64]:
        """Places among all SIDs in ascending order, -1 for those that do not exist."""
        wanted = np.array([self.number(sid) if min(sid) >= 0 else -1 for sid in sids], np.int64)
        place = np.searchsorted(self._prefixes[-1], wanted).clip(max=len(self) - 1)
        return np.where(self._prefixes[-1][place] == wanted, place, -1)

    def illegal_share(self, sids: Iterable[Sid]) -> float:
        """The share of SIDs that do not exist; 0 for none at all."""
        slots = self.slots(sids)
        return float((slots < 0).mean()) if len(slots) else 0.0


def _prefixes(whole: NDArray[np.int64], power: int) -> NDArray[np.int64]:
    shortened = whole // power
    return shortened[np.concatenate([[True], shortened[1:] != shortened[:-1]])] if len(shortened) else shortened
