"""The catalogue versions an engine holds: the newest and the last few before it.

A request names the version it was admitted under, so an answer never mixes two. A change is applied between two engine
steps and costs its own size; versions share everything it leaves alone. When the additions have grown, a thread folds
them into a new base, catches up with the changes made meanwhile, and puts its twin in the newest version's place by one
assignment; older versions keep the old base until they are forgotten. It knows SIDs and slots only; items stay with the
service.
"""

import threading
from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray

from service.engine.base import BeamRequest, CatalogDelta, LegalSlots
from service.errors import UnknownVersionError
from service.model.beam import BeamQuery
from service.model.legal_nodes import LegalNodes
from service.model.live_trie import LiveTrie
from service.model.trie_compaction import compacted

FILTER_BYTES = 64 * 2**20
MIN_ADDED = 16_384
ADDED_SHARE = 32


class CatalogVersions:
    """Starts at version 0 with the trained SIDs int [N, L] of codes below ``codes``.

    Args:
        trained_NL: the SIDs the model was trained with.
        codes: K.
        keep: how many versions are held.
        device: where the arrays lie.
        compact_at: how many added nodes a base may have beside it, None for a share of its size.
    """

    def __init__(
        self,
        trained_NL: NDArray[np.integer],
        codes: int,
        keep: int,
        *,
        device: str | torch.device = "cpu",
        compact_at: int | None = None,
    ) -> None:
        trie = LiveTrie.build(trained_NL, codes, device)
        self._keep = keep
        self._compact_at = compact_at or max(MIN_ADDED, trie.num_leaves // ADDED_SHARE)
        self._lock = threading.Lock()
        self._tries: OrderedDict[int, LiveTrie] = OrderedDict({0: trie})
        self._filters: OrderedDict[tuple[LiveTrie, str], LegalNodes] = OrderedDict()
        self._missed: list[CatalogDelta] = []
        self._thread: threading.Thread | None = None

    @property
    def latest(self) -> int:
        """The newest version."""
        return next(reversed(self._tries))

    @property
    def num_bytes(self) -> int:
        """Memory of the newest version and of all cached filters, in bytes."""
        return self._tries[self.latest].num_bytes + sum(legal.num_bytes for legal in self._filters.values())

    def get(self, version: int) -> LiveTrie | None:
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
        legal = None if request.legal is None else self._legal(trie, request.legal)
        return BeamQuery(trie, request.beam_width, excluded, request.num_results, legal)

    def apply(self, delta: CatalogDelta) -> None:
        """Make the delta's version and forget the oldest; a version that is already known is left as it is.

        Raises:
            ValueError: the delta does not change the latest version.
        """
        with self._lock:
            if delta.version <= self.latest:
                return
            if delta.previous != self.latest:
                raise ValueError(
                    f"the delta from catalogue version {delta.previous} to {delta.version} "
                    f"does not follow {self.latest}"
                )
            following = _advanced(self._tries[self.latest], delta)
            self._tries[delta.version] = following
            self._missed.append(delta)
            while len(self._tries) > self._keep:
                self._forget(self._tries.popitem(last=False)[1])
            if self._thread is None:
                self._missed.clear()
                if following.num_added > self._compact_at:
                    self._thread = threading.Thread(
                        target=self._compact, args=(following,), name="compaction", daemon=True
                    )
                    self._thread.start()

    def wait_for_compaction(self) -> None:
        """Return when no compaction is running."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _compact(self, trie: LiveTrie) -> None:
        """In a thread of its own: fold, until what came meanwhile is little enough to lie beside the base."""
        folding: LiveTrie | None = trie
        try:
            while folding is not None:
                folding = self._fold(folding)
        except BaseException:
            self._thread = None
            raise

    def _fold(self, trie: LiveTrie) -> LiveTrie | None:
        """Catch up without holding anybody, swap under the lock; the twin if it needs folding again."""
        twin, done = compacted(trie), 0
        while len(self._missed) > done + 1:
            twin, done = _advanced(twin, self._missed[done]), done + 1
        with self._lock:
            for delta in self._missed[done:]:
                twin = _advanced(twin, delta)
            replaced, self._tries[self.latest] = self._tries[self.latest], twin
            self._forget(replaced)
            self._missed.clear()
            if twin.num_added > self._compact_at:
                return twin
            # under the lock, so that the next change starts a thread of its own and none is missed
            self._thread = None
            return None

    def _legal(self, trie: LiveTrie, slots: LegalSlots) -> LegalNodes:
        key = (trie, slots.key)
        with self._lock:
            legal = self._filters.get(key)
            if legal is None:
                legal = LegalNodes.of(trie, slots)
                # a version that was replaced or forgotten meanwhile must not be kept alive by its filters
                if any(held is trie for held in self._tries.values()):
                    self._filters[key] = legal
            else:
                self._filters.move_to_end(key)
            while len(self._filters) > 1 and sum(kept.num_bytes for kept in self._filters.values()) > FILTER_BYTES:
                self._filters.popitem(last=False)
        return legal

    def _forget(self, trie: LiveTrie) -> None:
        for key in [key for key in self._filters if key[0] is trie]:
            del self._filters[key]


def _advanced(trie: LiveTrie, delta: CatalogDelta) -> LiveTrie:
    return trie.advance(delta.added, delta.removed, delta.smoothing)
