"""Grounding of items: text -> embedding -> SID and nearest trained neighbours, off the event loop.

One call at a time, so a burst of posts queues here and not in front of the engine. It knows the frozen encoder and
quantiser and the trained catalogue's embeddings; which SIDs are free is not its business.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from service.catalog import content_hash
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.item_text import item_text
from service.model.semantic_ids import Sid

NEIGHBOURS = 3
CACHED_EMBEDDINGS = 100_000

Embedding = NDArray[np.float32]
Result = TypeVar("Result")


class Encoder(Protocol):
    """What embeds text; `service.model.text_encoder.TextEncoder` in production."""

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> Embedding:
        """Unit embeddings float32 [N, E]."""
        ...


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A trained item and its cosine to the grounded one."""

    item_id: str
    title: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Grounded:
    """The quantiser's own SID, all SIDs under its prefix nearest first, and what the item resembles."""

    sid: Sid
    candidates: tuple[Sid, ...]
    neighbours: tuple[Neighbour, ...]

    @property
    def confidence(self) -> float:
        """The highest cosine to a trained item; low means that the model knows nothing like it."""
        return self.neighbours[0].similarity if self.neighbours else 0.0


class Grounder:
    """Embeds (with a cache by content) and grounds."""

    def __init__(self, checkpoint: Checkpoint, encoder: Encoder) -> None:
        self._encoder = encoder
        self._quantizer = checkpoint.quantizer()
        self._trained = [(item.item_id, item.title) for item in checkpoint.items()]
        self._embedding_NE = checkpoint.catalog_tensors().embedding_NE
        self._cache: OrderedDict[str, Embedding] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grounder")

    async def embed(self, items: Sequence[ItemRecord]) -> list[Embedding]:
        """One embedding [E] per item."""
        return await self.run(lambda: self._embed(items))

    async def ground(self, items: Sequence[ItemRecord]) -> list[Grounded]:
        """Ground items that have text."""
        return await self.run(lambda: [self._ground(embedding) for embedding in self._embed(items)])

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do other work of grounding on the same thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _embed(self, items: Sequence[ItemRecord]) -> list[Embedding]:
        keys = [content_hash(item) for item in items]
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in self._cache}
        found = {key: self._cache[key] for key in keys if key in self._cache}
        if missing:
            texts = [item_text(item.title, item.description, item.attributes) for item in missing.values()]
            found |= dict(zip(missing, self._encoder.encode(texts), strict=True))
        for key, embedding in found.items():
            self._cache[key] = embedding
            self._cache.move_to_end(key)
        while len(self._cache) > CACHED_EMBEDDINGS:
            self._cache.popitem(last=False)
        return [found[key] for key in keys]

    def _ground(self, embedding: Embedding) -> Grounded:
        embedding_E = torch.from_numpy(np.ascontiguousarray(embedding))
        sid = tuple(int(code) for code in self._quantizer.encode(embedding_E[None])[0])
        last_codes = self._quantizer.last_level_preferences(embedding_E, sid[:-1])
        candidates = tuple((*sid[:-1], code) for code in last_codes)
        return Grounded(sid, candidates, self._neighbours(embedding))

    def _neighbours(self, embedding: Embedding) -> tuple[Neighbour, ...]:
        cosine_N = self._embedding_NE @ embedding
        nearest = np.argsort(-cosine_N, kind="stable")[:NEIGHBOURS]
        return tuple(self._neighbour(int(row), float(cosine_N[row])) for row in nearest)

    def _neighbour(self, row: int, cosine: float) -> Neighbour:
        item_id, title = self._trained[row]
        return Neighbour(item_id, title, round(cosine, 4))
