"""The tries an engine holds: the newest catalogue version and the last few before it.

A request names the version it was admitted under, so an answer never mixes two. A new version is built beside the old
one and becomes visible by one assignment. It knows SIDs and their slots only; items stay with the service.
"""

from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray

from service.engine.base import BeamRequest, CatalogDelta
from service.errors import UnknownVersionError
from service.model.beam import BeamQuery
from service.model.legal_slots import LegalSlots
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix, SidTrie


class CatalogVersions:
    """Starts at version 0 with the trained SIDs int [N, L]."""

    def __init__(self, trained_NL: NDArray[np.integer], codes: int, keep: int) -> None:
        self._trained_NL = np.unique(trained_NL.astype(np.int64), axis=0)
        self._codes = codes
        self._keep = keep
        self._added: dict[Sid, None] = {}
        self._removed: set[Sid] = set()
        self._smoothing: dict[Sid, SiblingMix] = {}
        self._slot = {tuple(sid): slot for slot, sid in enumerate(self._trained_NL.tolist())}
        self._tries: OrderedDict[int, SidTrie] = OrderedDict({0: SidTrie.build(self._trained_NL, codes)})

    @property
    def latest(self) -> int:
        """The newest version."""
        return next(reversed(self._tries))

    def get(self, version: int) -> SidTrie | None:
        """The trie of a version, None if it is not held (any more)."""
        return self._tries.get(version)

    def query(self, request: BeamRequest) -> BeamQuery:
        """What the beam needs to know of a request.

        Raises:
            UnknownVersionError: the version is not held (any more).
        """
        trie = self.get(request.catalog_version)
        if trie is None:
            raise UnknownVersionError(f"catalogue version {request.catalog_version} is no longer held")
        excluded = torch.tensor([list(sid) for sid in request.excluded], dtype=torch.int64).reshape(-1, trie.depth)
        if request.legal is not None:
            excluded = torch.cat([excluded, self._illegal(trie, request.legal)])
        return BeamQuery(trie, request.beam_width, excluded, request.num_results)

    def apply(self, delta: CatalogDelta) -> None:
        """Build the delta's version and forget the oldest; a version that is already known is left as it is.

        Raises:
            ValueError: the delta does not change the latest version.
        """
        if delta.version <= self.latest:
            return
        if delta.previous != self.latest:
            raise ValueError(
                f"the delta from catalogue version {delta.previous} to {delta.version} does not follow {self.latest}"
            )
        for sid in delta.removed:
            self._added.pop(sid, None)
            self._removed.add(sid)
        for sid in delta.added:
            self._removed.discard(sid)
            self._added[sid] = None
            self._slot.setdefault(sid, len(self._slot))
        self._tries[delta.version] = self._build(delta)
        while len(self._tries) > self._keep:
            self._tries.popitem(last=False)

    def _illegal(self, trie: SidTrie, legal: LegalSlots) -> torch.Tensor:
        codes_NL = trie.leaf_codes()
        slots = [self._slot[tuple(sid)] for sid in codes_NL.tolist()]
        return codes_NL[torch.from_numpy(~legal.mask(len(self._slot))[slots])]

    def _build(self, delta: CatalogDelta) -> SidTrie:
        self._smoothing.update(delta.smoothing)
        kept_NL = self._trained_NL
        if self._removed:
            kept_NL = kept_NL[[tuple(row) not in self._removed for row in kept_NL.tolist()]]
        added = np.array(list(self._added), np.int64).reshape(-1, kept_NL.shape[1])
        trained_N = np.arange(len(kept_NL) + len(added)) < len(kept_NL)
        codes_NL = np.concatenate([kept_NL, added])
        return SidTrie.build(codes_NL, self._codes, trained_N=trained_N, smoothing=self._smoothing)
