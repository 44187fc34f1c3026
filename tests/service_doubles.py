"""Stand-ins for what is slow (model, text encoder) and the service running around them, inside the test's loop."""

import asyncio
import dataclasses
import re
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from service.app import Parts, Service, open_service
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineStatistics, TokenRow
from service.errors import UnknownVersionError
from service.model.checkpoint import CatalogTensors, Checkpoint, ItemRecord, open_checkpoint, seal, write_catalog
from service.model.checkpoint_files import QUANTIZER
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import Sid
from service.settings import Settings
from service.stores.memory import MemoryHistory
from service.stores.memory_feedback import MemoryFeedback
from service.stores.memory_items import MemoryItemLog
from tests.tiny_checkpoint import EMBEDDING_WIDTH, Shape, build


class FakeEncoder:
    """Texts saying "like Title 7" embed as item 7 does; others anywhere, but always at the same place."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._embedding_NE = checkpoint.catalog_tensors().embedding_NE
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        self.texts += texts
        return np.stack([self._embed(text) for text in texts])

    def _embed(self, text: str) -> NDArray[np.float32]:
        if likeness := re.search(r"like Title (\d+)", text):
            row: NDArray[np.float32] = self._embedding_NE[int(likeness[1])]
            return row
        vector = np.random.default_rng(zlib.crc32(text.encode())).normal(size=self._embedding_NE.shape[1])
        return np.asarray(vector / np.linalg.norm(vector), np.float32)


class FakeEngine:
    """An exhaustive search: scores every SID of the catalogue by a checksum of prompt and SID."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        sids = frozenset(tuple(codes) for codes in checkpoint.catalog_tensors().codes_NL.tolist())
        self.versions: dict[int, frozenset[Sid]] = {0: sids}
        self.slots = {sid: slot for slot, sid in enumerate(sorted(sids))}
        self.deltas: list[CatalogDelta] = []
        self.written: list[TokenRow] = []
        self.requests: list[BeamRequest] = []
        self.failure: Exception | None = None
        self.death = asyncio.Event()
        self.failing_updates = 0
        self.hangs = False
        self.cancelled = 0
        self.closed = False

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        self.requests.append(request)
        await self._trouble()
        if request.catalog_version not in self.versions:
            raise UnknownVersionError("gone")
        legal = self.versions[request.catalog_version] - set(request.excluded)
        if request.legal is not None:
            allowed = request.legal.mask(len(self.slots))
            legal = frozenset(sid for sid in legal if allowed[self.slots[sid]])
        most = request.num_results or request.beam_width
        scored = sorted((-self.score(request.prompt_ids, sid), sid) for sid in legal)[:most]
        scores = tuple(-score for score, _ in scored)
        return BeamAnswer(tuple(sid for _, sid in scored), scores, tuple((score,) for score in scores), exact=True)

    def score(self, prompt_ids: Sequence[int], sid: Sid) -> float:
        return -1 - zlib.crc32(repr((list(prompt_ids), sid)).encode()) % 10_000 / 1000

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """Takes a version once, as real engines do, even when its acknowledgement is lost."""
        if delta.version not in self.versions:
            sids = (self.versions[delta.previous] - set(delta.removed)) | set(delta.added)
            self.versions[delta.version] = sids
            self.deltas.append(delta)
            for sid in delta.added:
                self.slots.setdefault(sid, len(self.slots))
        if self.failing_updates:
            self.failing_updates -= 1
            assert self.failure is not None
            raise self.failure

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        await self._trouble()
        self.written += rows

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(0, 9, len(self.requests), 5 * len(self.requests), 2 * len(self.requests), 1234)

    async def canary(self) -> None:
        await self._trouble()

    async def gone(self) -> None:
        await self.death.wait()

    async def close(self) -> None:
        self.closed = True

    async def _trouble(self) -> None:
        if self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure:
            raise self.failure


def exact_checkpoint(folder: Path, shape: Shape) -> Checkpoint:
    """A tiny checkpoint whose quantiser finds the catalogue's own SIDs: each level has dimensions of its own."""
    made = build(folder, shape)
    random = np.random.default_rng(shape.seed)
    books = np.zeros((shape.levels, shape.codes, EMBEDDING_WIDTH), np.float32)
    dims = np.array_split(np.arange(EMBEDDING_WIDTH), shape.levels)
    share = np.array([0.81, 0.16, 0.03][: shape.levels])
    for level, weight in enumerate(np.sqrt(share / share.sum())):
        part = random.normal(size=(shape.codes, len(dims[level])))
        books[level][:, dims[level]] = weight * part / np.linalg.norm(part, axis=1, keepdims=True)
    save_file(ResidualQuantizer(torch.from_numpy(books)).tensors(), folder / QUANTIZER)
    old = made.catalog_tensors()
    embedding = np.sum([books[level][old.codes_NL[:, level]] for level in range(shape.levels)], axis=0)
    return write_items(made, made.items(), CatalogTensors(old.codes_NL, embedding, old.popularity_N))


def write_items(made: Checkpoint, items: Sequence[ItemRecord], tensors: CatalogTensors) -> Checkpoint:
    """The checkpoint with another catalogue."""
    write_catalog(made.folder, items, tensors)
    fields = made.manifest.model_dump(exclude={"files", "model_version"})
    fields["data"]["num_items"] = len(items)
    seal(made.folder, fields)
    return open_checkpoint(made.folder)


@dataclass(frozen=True, slots=True)
class Running:
    """A started service with its stand-ins and a client that speaks to it without a socket."""

    service: Service
    engine: FakeEngine
    encoder: FakeEncoder
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def recommend(self, **body: Any) -> dict[str, Any]:
        return await self.post("/recommend", body)

    async def item(self, **body: Any) -> dict[str, Any]:
        """Post one item; its result."""
        found: dict[str, Any] = (await self.post("/items", body))["items"][0]
        return found


@asynccontextmanager
async def running(checkpoint: Checkpoint, parts: Parts | None = None, **settings: Any) -> AsyncIterator[Running]:
    """A service over memory, or over what ``parts`` and ``settings`` say."""
    engine, encoder = FakeEngine(checkpoint), FakeEncoder(checkpoint)
    given = parts or Parts(item_log=MemoryItemLog(), histories=MemoryHistory())
    feedback = given.feedback or MemoryFeedback()
    everything = dataclasses.replace(
        given, engine=given.engine or engine, encoder=given.encoder or encoder, feedback=feedback
    )
    wanted = Settings(**{"checkpoint": checkpoint.folder, "allow_volatile": parts is None, **settings})
    async with open_service(wanted, everything) as service:
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://groundrec") as client:
            yield Running(service, engine, encoder, client)


def ids(answer: dict[str, Any]) -> list[str]:
    """The items of an answer, in order."""
    return [item["item_id"] for item in answer["items"]]
