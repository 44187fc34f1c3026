"""The reference engine: the grounded LM on plain torch, one request at a time in a worker thread.

It is what parity tests compare vLLM with and what serves where vLLM cannot be installed; it makes no claim to speed.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions, EngineStatistics, TokenRow
from service.engine.catalog_versions import CatalogVersions
from service.errors import DeadlineError, EngineError
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
        self._unfinished = self._answered = self._prompt_tokens = 0

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`; a cancelled request that has not begun is never computed."""
        self._unfinished += 1
        try:
            found = await self._run(self._search, request)
        finally:
            self._unfinished -= 1
        self._answered, self._prompt_tokens = self._answered + 1, self._prompt_tokens + len(request.prompt_ids)
        return found

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """See `Engine.update_catalog`."""
        await self._run(self._versions.apply, delta)

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """See `Engine.write_tokens`; no KV outlives a request here."""
        await self._run(self._write, rows)

    async def statistics(self) -> EngineStatistics:
        """See `Engine.statistics`; no KV is kept here."""
        return EngineStatistics(self._unfinished, 0, self._answered, self._prompt_tokens, 0, self._versions.num_bytes)

    async def canary(self) -> None:
        """See `Engine.canary`."""
        prefix = tuple(self._model.get_buffer("prefix_ids").tolist())
        await self.recommend("canary", BeamRequest(prefix, 1, self._versions.latest))

    async def gone(self) -> None:
        """See `Engine.gone`; it lives in the service's own process."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """See `Engine.close`."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _run(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, argument)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"the torch engine failed: {error}") from error

    @torch.no_grad()
    def _search(self, request: BeamRequest) -> BeamAnswer:
        if request.deadline is not None and time.monotonic() > request.deadline:
            raise DeadlineError("the deadline passed before the engine began")
        query = self._versions.query(request)
        model = TorchBeamModel(self._model, [request.prompt_ids])
        return answer(beam_search(model, [query], log_boost=self._log_boost)[0])

    @torch.no_grad()
    def _write(self, rows: Sequence[TokenRow]) -> None:
        for row in rows:
            self._model.write_row(row.level, row.code, torch.tensor(row.input_D), torch.tensor(row.output_D))


def answer(beams: Beams) -> BeamAnswer:
    """Tensors to the plain answer."""
    return BeamAnswer(
        tuple(tuple(sid) for sid in beams.codes_nL.tolist()),
        tuple(beams.score_n.tolist()),
        tuple(tuple(scores) for scores in beams.level_score_nL.tolist()),
        beams.exact,
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
