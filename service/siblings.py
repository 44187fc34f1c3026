"""Keeps what new nodes borrow from their trained siblings up to date, at the cost of what a step changes.

A new leaf goes by the embeddings of the items in its bucket, a new inner node by the sum of those below it, which is
carried along. The mathematics is `service.model.smoothing`'s; who is where, the catalogue's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.catalog import Catalog, CatalogItem, CatalogStep
from service.model.semantic_ids import Sid
from service.model.smoothing import SiblingMixer
from service.model.trie import SiblingMix
from service.vectors import unpack


@dataclass(slots=True)
class _Below:
    """How many new items lie below an inner node, and the sum of their embeddings, float32 [E]."""

    items: int
    sum_E: NDArray[np.float32]


class SiblingSums:
    """Follows the catalogue step by step; every step must be shown once, in order."""

    def __init__(self, mixer: SiblingMixer) -> None:
        self._mixer = mixer
        self._below: dict[Sid, _Below] = {}

    def mixes(self, step: CatalogStep) -> dict[Sid, SiblingMix]:
        """The mixtures of the new nodes that the step touches and leaves with items."""
        touched: dict[Sid, None] = {}
        for change in step.changes:
            for item, sign in ((change.before, -1), (change.after, 1)):
                if item and _vector(item):
                    touched |= dict.fromkeys(self._count(item, sign))
        made = ((prefix, self._mix(prefix, step.catalog)) for prefix in touched)
        return {prefix: mix for prefix, mix in made if mix is not None}

    def _count(self, item: CatalogItem, sign: int) -> list[Sid]:
        """Add or take away one item; the new nodes above it."""
        prefixes = (item.sid[:length] for length in range(1, len(item.sid) + 1))
        new = [prefix for prefix in prefixes if not self._mixer.is_trained(prefix)]
        embedding = unpack(_vector(item))
        for prefix in new:
            if len(prefix) < len(item.sid):
                below = self._below.setdefault(prefix, _Below(0, np.zeros_like(embedding)))
                below.items, below.sum_E = below.items + sign, below.sum_E + sign * embedding
        return new

    def _mix(self, prefix: Sid, catalog: Catalog) -> SiblingMix | None:
        if below := self._below.get(prefix):
            if below.items:
                return self._mixer.mix(prefix, below.sum_E)
            del self._below[prefix]
            return None
        items = (catalog.get(item_id) for item_id in catalog.bucket(prefix))
        vectors = [unpack(vector) for item in items if item and (vector := _vector(item))]
        return self._mixer.mix(prefix, np.sum(vectors, axis=0)) if vectors else None


def _vector(item: CatalogItem) -> bytes:
    return item.entry.vector if item.is_new and item.entry else b""
