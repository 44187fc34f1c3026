"""Grounding of items: text -> embedding -> SID and nearest trained neighbours, off the event loop.

One call at a time, so a burst of posts queues here and not in front of the engine. It knows the frozen encoder and
quantiser and the trained catalogue's embeddings; which SIDs are free is not its business.

What "unlike anything known" means comes from the checkpoint itself: trained items are looked at as if each were new,
and a posted one that is farther from its nearest neighbour than 99 % of those is marked.

Shapes: B items of a call, N trained items, E embedding width, L levels, K codes.
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

from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.item_text import item_text
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import Sid
from service.vectors import pack, unpack

NEIGHBOURS = 3
CACHED_VECTORS = 100_000
CANDIDATES = 128
SAMPLED_QUERIES = 512
SAMPLED_ITEMS = 100_000
UNUSUAL_PERCENT = 1.0

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
    """The quantiser's prefix for an item, last codes under it nearest first, and what the item resembles.

    ``distances`` are what each level leaves unexplained, as shares of the embedding's squared length: low and falling
    for texts that the codebooks know. ``unusual`` says that hardly any trained item has a nearest neighbour so far off.
    ``vector`` is the packed embedding.
    """

    prefix: Sid
    last_codes: tuple[int, ...]
    neighbours: tuple[Neighbour, ...]
    distances: tuple[float, ...]
    unusual: bool
    vector: bytes

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
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grounder")
        self.unusual_below = usual_similarity(self._embedding_NE)

    async def ground(self, items: Sequence[ItemRecord], hashes: Sequence[str]) -> list[Grounded]:
        """Ground items that have text; ``hashes`` are their content hashes."""
        return await self.run(lambda: self._ground(items, hashes))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do other work of grounding on the same thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def quantizer(self) -> ResidualQuantizer:
        """What gives items their codes at the moment."""
        return self._quantizer

    def use(self, quantizer: ResidualQuantizer) -> None:
        """Ground by another quantiser from the next call on: codes were opened or closed."""
        self._quantizer = quantizer

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _vectors(self, items: Sequence[ItemRecord], hashes: Sequence[str]) -> list[bytes]:
        missing = {key: item for key, item in zip(hashes, items, strict=True) if key not in self._cache}
        found = {key: self._cache[key] for key in hashes if key in self._cache}
        if missing:
            texts = [item_text(item.title, item.description, item.attributes) for item in missing.values()]
            found |= {key: pack(row) for key, row in zip(missing, self._encoder.encode(texts), strict=True)}
        for key, vector in found.items():
            self._cache[key] = vector
            self._cache.move_to_end(key)
        while len(self._cache) > CACHED_VECTORS:
            self._cache.popitem(last=False)
        return [found[key] for key in hashes]

    def _ground(self, items: Sequence[ItemRecord], hashes: Sequence[str]) -> list[Grounded]:
        if not items:
            return []
        vectors = self._vectors(items, hashes)
        # from the packed form, as every other replica and every restart has it
        embedding_BE = torch.from_numpy(np.stack([unpack(vector) for vector in vectors]))
        codes_BL, left_BL = self._quantizer.encode_with_distances(embedding_BE)
        length_B1 = (self._quantizer.project(embedding_BE) ** 2).sum(1, keepdim=True).clamp(min=1e-12)
        share_BL = (left_BL / length_B1).clamp(min=0)
        last_BK = self._quantizer.last_level_distances(embedding_BE, codes_BL)
        order_BK = torch.sort(last_BK, dim=1, stable=True).indices[:, :CANDIDATES]
        neighbours = self._neighbours(embedding_BE.numpy())
        return [
            Grounded(
                tuple(codes[:-1]),
                tuple(order),
                near,
                tuple(round(share, 4) for share in shares),
                bool(near) and near[0].similarity < self.unusual_below,
                vector,
            )
            for codes, order, near, shares, vector in zip(
                codes_BL.tolist(), order_BK.tolist(), neighbours, share_BL.tolist(), vectors, strict=True
            )
        ]

    def _neighbours(self, embedding_BE: Embedding) -> list[tuple[Neighbour, ...]]:
        count = min(NEIGHBOURS, len(self._trained))
        if not count:
            return [()] * len(embedding_BE)
        cosine_BN = embedding_BE @ self._embedding_NE.T
        best_BM = np.argpartition(-cosine_BN, count - 1, axis=1)[:, :count]
        return [self._nearest(cosine_N, best_M) for cosine_N, best_M in zip(cosine_BN, best_BM, strict=True)]

    def _nearest(self, cosine_N: Embedding, best_M: NDArray[np.intp]) -> tuple[Neighbour, ...]:
        rows = sorted(best_M.tolist(), key=lambda row: (-cosine_N[row], row))
        return tuple(self._neighbour(row, float(cosine_N[row])) for row in rows)

    def _neighbour(self, row: int, cosine: float) -> Neighbour:
        item_id, title = self._trained[row]
        return Neighbour(item_id, title, round(cosine, 4))


def usual_similarity(embedding_NE: Embedding) -> float:
    """The cosine to the nearest other trained item that all but `UNUSUAL_PERCENT` % of a sample reach."""
    count = len(embedding_NE)
    if count < 2:
        return -1.0
    random = np.random.default_rng(0)
    queries = random.permutation(count)[:SAMPLED_QUERIES]
    others = np.arange(count) if count <= SAMPLED_ITEMS else random.permutation(count)[:SAMPLED_ITEMS]
    cosine_QN = embedding_NE[queries] @ embedding_NE[others].T
    cosine_QN[queries[:, None] == others[None]] = -1.0
    return float(np.percentile(cosine_QN.max(1), UNUSUAL_PERCENT))
