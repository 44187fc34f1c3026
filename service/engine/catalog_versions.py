"""The tries an engine holds: the newest catalogue version and the last few before it.

A request names the version it was admitted under, so an answer never mixes two. A new version is built beside the old
one and becomes visible by one assignment. It knows SIDs only; items stay with the service.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from service.engine.base import CatalogDelta
from service.model.semantic_ids import Sid
from service.model.trie import SidTrie


class CatalogVersions:
    """Starts at version 0 with the trained SIDs int [N, L]."""

    def __init__(self, trained_NL: NDArray[np.integer], codes: int, keep: int) -> None:
        self._trained_NL = np.unique(trained_NL.astype(np.int64), axis=0)
        self._codes = codes
        self._keep = keep
        self._added: dict[Sid, None] = {}
        self._removed: set[Sid] = set()
        self._tries: OrderedDict[int, SidTrie] = OrderedDict({0: SidTrie.build(self._trained_NL, codes)})

    @property
    def latest(self) -> int:
        """The newest version."""
        return next(reversed(self._tries))

    def get(self, version: int) -> SidTrie | None:
        """The trie of a version, None if it is not held (any more)."""
        return self._tries.get(version)

    def apply(self, delta: CatalogDelta) -> None:
        """Build the delta's version and forget the oldest; a version that is already known is left as it is.

        Raises:
            ValueError: the delta skips a version.
        """
        if delta.version <= self.latest:
            return
        if delta.version != self.latest + 1:
            raise ValueError(f"catalogue version {delta.version} does not follow {self.latest}")
        for sid in delta.removed:
            self._added.pop(sid, None)
            self._removed.add(sid)
        for sid in delta.added:
            self._removed.discard(sid)
            self._added[sid] = None
        self._tries[delta.version] = self._build(delta)
        while len(self._tries) > self._keep:
            self._tries.popitem(last=False)

    def _build(self, delta: CatalogDelta) -> SidTrie:
        kept_NL = self._trained_NL
        if self._removed:
            kept_NL = kept_NL[[tuple(row) not in self._removed for row in kept_NL.tolist()]]
        added = np.array(list(self._added), np.int64).reshape(-1, kept_NL.shape[1])
        trained_N = np.arange(len(kept_NL) + len(added)) < len(kept_NL)
        codes_NL = np.concatenate([kept_NL, added])
        return SidTrie.build(codes_NL, self._codes, trained_N=trained_N, smoothing=delta.smoothing)
