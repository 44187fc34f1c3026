"""The whole beam inside one vLLM request: a pooler that decodes.

A user is one pooling request. vLLM schedules, chunks, batches and caches its prompt; when prompts of a step are
finished, this pooler runs the remaining levels for all beams of all those users and returns SIDs instead of an
embedding. Beam codes never reach the scheduler, hold no cache blocks, and nothing crosses processes between levels.

Shapes: U users, R live beams, n codes so far, K codes, D model width.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from service.engine.base import BeamRequest
from service.engine.catalog_versions import CatalogVersions
from service.engine.shared_prefix import BeamKV
from service.engine.vllm_attention import PagedPrompts
from service.engine.vllm_interfaces import Pooler, VllmConfig, attention_layers, set_forward_context
from service.engine.wire import decode_request, encode_beams, too_late, unknown_version
from service.errors import UnknownVersionError
from service.model.beam import BeamQuery, Beams, beam_search, level_log_probs

# users are decoded together up to this many beams: more gain nothing (a matrix product of 2,000 rows is as fast per row
# as one of 20,000), but hold the memory of all their keys and values at once
ROWS_TOGETHER = 2048


class WorkerBeamModel:
    """A `BeamModel` on vLLM's layers: live beams are the rows of one forward pass over a `BeamKV`."""

    def __init__(self, model: Any, config: VllmConfig, last_UD: Tensor, length_U: Tensor, kv: BeamKV) -> None:
        self._model = model
        self._config = config
        self._last_UD = last_UD
        self._length_U = length_U
        self._kv = kv
        self._layers = dict.fromkeys(attention_layers(config), kv)

    def first(self) -> Tensor:
        """Log-probabilities of the first code, float32 [U, K]."""
        return level_log_probs(self._last_UD, self._model.level_head(0))

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Log-probabilities of the next code, float32 [R, K]."""
        rows, level = codes_Rn.shape
        self._kv.advance(user_R, parent_R)
        # vLLM's rotary kernel reads the positions' memory as it lies: they must be contiguous
        position_R = (self._length_U[user_R] + level - 1).contiguous()
        inputs_RD = self._model.embed_last_code(codes_Rn)
        with set_forward_context(self._layers, self._config, num_tokens=rows, slot_mapping={}, skip_compiled=False):
            hidden_RD = self._model.model(None, position_R, None, inputs_RD)
        return level_log_probs(hidden_RD, self._model.level_head(level))


class BeamPooler(Pooler):  # type: ignore[misc]
    """Runs the beam for the requests whose prompt ends in this step."""

    def __init__(self, model: Any, config: VllmConfig, versions: CatalogVersions, log_boost: float) -> None:
        super().__init__()
        object.__setattr__(self, "_model", model)  # a plain attribute: a module's child may not be its parent
        self._config = config
        self._log_boost = log_boost
        self.versions = versions

    def get_supported_tasks(self) -> set[str]:
        """The task under which vLLM lets a pooling request read the prefix cache."""
        return {"embed"}

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: Any) -> list[Tensor | None]:
        """One tensor per finished request (see `wire`), None for those still in prefill."""
        params = pooling_metadata.pooling_params
        if self._model.attention_metadata is None:  # vLLM's profiling run has no requests of ours
            return [torch.zeros(1) for _ in params]
        cursor = pooling_metadata.get_pooling_cursor()
        outputs: list[Tensor | None] = [None] * len(params)
        queries: dict[int, BeamQuery] = {}
        for index, finished in enumerate(cursor.finished_mask):
            if finished:
                found = self._query(decode_request(params[index].extra_kwargs))
                if isinstance(found, BeamQuery):
                    queries[index] = found
                else:
                    outputs[index] = found
        lengths = cursor.prompt_lens_cpu.tolist()
        for members in batches({index: query.width for index, query in queries.items()}, lengths):
            last_UD = hidden_states[cursor.last_token_indices_gpu[members]]
            start = time.perf_counter()
            beams = self._decode([queries[index] for index in members], members, last_UD, [lengths[m] for m in members])
            for index, answer in zip(members, beams, strict=True):
                outputs[index] = encode_beams(answer, time.perf_counter() - start)
        return outputs

    def _query(self, request: BeamRequest) -> BeamQuery | Tensor:
        if request.deadline is not None and request.deadline <= time.monotonic():
            return too_late()
        try:
            return self.versions.query(request)
        except UnknownVersionError:
            return unknown_version()

    def _decode(
        self, queries: Sequence[BeamQuery], members: Sequence[int], last_UD: Tensor, lengths: Sequence[int]
    ) -> list[Beams]:
        layers = attention_layers(self._config)
        table = self._model.attention_metadata.block_table[list(members)]
        prompts = PagedPrompts(layers, table, self._config.cache_config.block_size)
        kv = BeamKV(list(layers), [query.width for query in queries], lengths, prompts)
        length_U = torch.tensor(lengths, device=last_UD.device)
        model = WorkerBeamModel(self._model, self._config, last_UD, length_U, kv)
        return beam_search(model, queries, log_boost=self._log_boost)


def batches(widths: dict[int, int], lengths: Sequence[int], rows: int = ROWS_TOGETHER) -> list[list[int]]:
    """Requests (index -> beam width) in batches of at most ``rows`` beams, or one request; similar ones together."""
    order = sorted(widths, key=lambda index: (widths[index], lengths[index], index))
    found: list[list[int]] = []
    total = 0
    for index in order:
        if not found or total + widths[index] > rows:
            found.append([])
            total = 0
        found[-1].append(index)
        total += widths[index]
    return found
