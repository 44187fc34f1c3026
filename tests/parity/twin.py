"""The same checkpoint three times, and the shapes that parity is proven on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.base import EngineOptions
from service.engine.torch_engine import TorchEngine
from service.engine.vllm_engine import VllmEngine
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM
from service.model.semantic_ids import Sid
from tests.tiny_checkpoint import Shape

# 32 tokens a step: every prompt of more than 10 items is computed in chunks, and its first blocks are cacheable
OPTIONS = EngineOptions(
    dtype="float32", max_batch_users=8, kv_cache_gib=0.25, omp_threads=1, smoothing_boost=2.0, prefill_tokens=32
)
SHAPES = {
    "llama": Shape("llama", tied=True, max_items=40),
    "qwen2": Shape("qwen2", tied=True, max_items=40),
    "qwen3": Shape("qwen3", tied=False, levels=4, max_items=40),
    "gemma": Shape("gemma", tied=True, max_items=40),
    "no memory": Shape("llama", tied=False, memory=False, max_items=40),
}


@dataclass(frozen=True)
class Twin:
    """The same checkpoint three times: as the training model, the torch engine and vLLM."""

    checkpoint: Checkpoint
    model: GroundedLM
    torch: TorchEngine
    vllm: VllmEngine
    codes_NL: NDArray[np.int64]

    @property
    def sids(self) -> list[Sid]:
        return [tuple(sid) for sid in self.codes_NL.tolist()]

    def history(self, items: int, seed: int) -> list[Sid]:
        chosen = np.random.default_rng(seed).integers(0, len(self.codes_NL), items)
        return [self.sids[item] for item in chosen]
