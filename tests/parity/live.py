"""A catalogue too large to be scored exactly, served by both engines, for what a running engine is asked to do."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.engine.base import BeamAnswer, BeamRequest, EngineOptions, LegalSlots
from service.engine.torch_engine import TorchEngine
from service.engine.vllm_engine import VllmEngine
from service.model.checkpoint import Checkpoint
from service.model.semantic_ids import Sid
from tests.tiny_checkpoint import Shape

OPTIONS = EngineOptions(
    dtype="float32", max_batch_users=8, kv_cache_gib=0.25, omp_threads=1, smoothing_boost=2.0, prefill_tokens=32
)
SHAPE = Shape("llama", tied=True, levels=4, codes=16, items=3000, max_items=30, spare_codes=2)


@dataclass(frozen=True)
class Pair:
    """The same checkpoint in the reference and in vLLM; ``sids`` are its SIDs in the order of their slots."""

    checkpoint: Checkpoint
    torch: TorchEngine
    vllm: VllmEngine
    sids: list[Sid]

    def request(
        self,
        seed: int,
        width: int = 20,
        *,
        items: int = 12,
        version: int = 0,
        excluded: Sequence[Sid] = (),
        legal: LegalSlots | None = None,
        num_results: int | None = None,
        deadline: float | None = None,
    ) -> BeamRequest:
        """A request of a random history."""
        chosen = np.random.default_rng(seed).integers(0, len(self.sids), items)
        prompt = self.checkpoint.prompt.build([self.sids[item] for item in chosen])
        return BeamRequest(prompt, width, version, excluded, legal, num_results, deadline)

    def unused(self, count: int, seed: int = 0) -> list[Sid]:
        """SIDs that no trained item has."""
        space, taken = self.checkpoint.space, set(self.sids)
        free = [sid for sid in itertools.product(range(space.codes), repeat=space.levels) if sid not in taken]
        return [free[n] for n in np.random.default_rng(seed).permutation(len(free))[:count]]


def same(answer: BeamAnswer, want: BeamAnswer, bound: float = 1e-3) -> bool:
    """Equal SIDs in equal order, but for neighbours whose scores are closer than the bound."""
    if len(answer.sids) != len(want.sids) or answer.exact != want.exact:
        return False
    close = all(abs(a - b) <= bound for a, b in zip(answer.scores, want.scores, strict=True))
    known = dict(zip(want.sids, want.scores, strict=True))
    placed = all(
        abs(known.get(sid, want.scores[-1]) - score) <= bound
        for sid, score in zip(answer.sids, answer.scores, strict=True)
    )
    return close and placed
