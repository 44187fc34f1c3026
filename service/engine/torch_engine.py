"""The reference engine: the grounded LM on plain torch, one request at a time in a worker thread.

It is what parity tests compare vLLM with and what serves where vLLM cannot be installed; it makes no claim to speed.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions
from service.engine.catalog_versions import CatalogVersions
from service.errors import EngineError, UnknownVersionError
from service.model.beam import Beams, beam_search
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.torch_beam import TorchBeamModel

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class TorchEngine:
    """Implements `service.engine.base.Engine`."""

    def __init__(self, model: GroundedLM, versions: CatalogVersions, log_boost: float) -> None:
        self._model = model
        self._versions = versions
        self._log_boost = log_boost
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torch-engine")

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`; a cancelled request that has not begun is never computed."""
        return await self._run(self._search, request)

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """See `Engine.update_catalog`."""
        await self._run(self._versions.apply, delta)

    async def canary(self) -> None:
        """See `Engine.canary`."""
        prefix = tuple(self._model.get_buffer("prefix_ids").tolist())
        await self.recommend("canary", BeamRequest(prefix, 1, self._versions.latest))

    async def close(self) -> None:
        """See `Engine.close`."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _run(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, argument)
        except RuntimeError as error:
            raise EngineError(f"the torch engine failed: {error}") from error

    @torch.no_grad()
    def _search(self, request: BeamRequest) -> BeamAnswer:
        trie = self._versions.get(request.catalog_version)
        if trie is None:
            raise UnknownVersionError(f"catalogue version {request.catalog_version} is no longer held")
        codes = torch.tensor([list(sid) for sid in request.excluded], dtype=torch.int64)
        excluded = trie.find(codes.reshape(-1, self._model.space.levels))
        model = TorchBeamModel(self._model, [request.prompt_ids])
        width = [request.beam_width]
        return answer(beam_search(trie, model, width, [excluded[excluded >= 0]], log_boost=self._log_boost)[0])


def answer(beams: Beams) -> BeamAnswer:
    """Tensors to the plain answer."""
    return BeamAnswer(
        tuple(tuple(sid) for sid in beams.codes_nL.tolist()),
        tuple(beams.score_n.tolist()),
        tuple(tuple(scores) for scores in beams.level_score_nL.tolist()),
    )


async def start_torch_engine(checkpoint: Checkpoint, options: EngineOptions) -> TorchEngine:
    """Load the checkpoint into a reference engine.

    Raises:
        CheckpointError: a tensor file does not fit the manifest.
    """
    torch.set_num_threads(options.omp_threads)
    model = load_grounded_lm(checkpoint, getattr(torch, options.dtype))
    trained_NL = checkpoint.catalog_tensors().codes_NL
    versions = CatalogVersions(trained_NL, checkpoint.space.codes, options.versions_kept)
    return TorchEngine(model, versions, math.log(options.smoothing_boost))
