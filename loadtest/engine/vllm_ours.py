"""Ours inside this process: the service's own vLLM arguments, requests and answers, without its second process.

`VllmRunner` takes a whole batch before its first step, as the contenders' engines do, so a batch is a batch; the
running service meets requests as they come, which the load tests measure. Everything that depends on the engine's
insides is in this file.

Shapes: U users, N SIDs.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loadtest.engine.contender import Answer, Batch, Host, HostSpec
from loadtest.engine.engine_options import engine_options
from loadtest.engine.prompts import legal_mask
from loadtest.engine.trace_shares import shares
from service.engine.base import BeamRequest, LegalSlots
from service.engine.vllm_process import engine_environment
from service.model.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from service.engine.vllm_runner import VllmRunner


def open_host(spec: HostSpec) -> Host:
    """Start the engine in this process."""
    checkpoint = open_checkpoint(Path(spec.checkpoint), verify=False)
    options = engine_options(spec)
    os.environ.update(engine_environment(options))
    from service.engine.vllm_runner import VllmRunner  # vLLM reads the environment when it is imported

    ours = Ours(VllmRunner(checkpoint, options), checkpoint)
    return Host({"ours": ours}, {"profile": ours.profile})


class Ours:
    """One pooling request per user; the beam runs inside the worker."""

    def __init__(self, runner: "VllmRunner", checkpoint: Checkpoint) -> None:
        self._runner = runner
        self._sids = len(np.unique(checkpoint.catalog_tensors().codes_NL, axis=0))
        self._filters: dict[tuple[float, str], LegalSlots] = {}

    def prepare(self, batch: Batch) -> None:
        """Forget cached prompts unless told to keep them; make the filter."""
        if not batch.keep_cache:
            self._runner.forget_prompts()
        self._legal(batch)

    def run(self, batch: Batch) -> list[Answer]:
        """All users at once."""
        legal = self._legal(batch)
        requests = [BeamRequest(prompt, batch.beam, 0, legal=legal) for prompt in batch.prompts]
        answers = self._runner.recommend(requests)
        return [Answer(answer.sids, answer.scores) for answer in answers]

    def profile(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Shares of one batch's CPU time by what it was spent on, see `trace_shares`."""
        wanted = Batch(**batch)
        self.prepare(wanted)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
            self.run(wanted)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            return dict(shares(json.loads(path.read_text())))

    def _legal(self, batch: Batch) -> LegalSlots | None:
        if batch.legal_share >= 1:
            return None
        known = (batch.legal_share, batch.legal_key)
        if known not in self._filters:
            mask_N = legal_mask(batch.legal_share, batch.legal_key, self._sids)
            bits = np.packbits(mask_N, bitorder="little").tobytes()
            self._filters[known] = LegalSlots(f"0:{batch.legal_key}", bits, int(mask_N.sum()))
        return self._filters[known]
