"""The whole beam inside one vLLM request: a pooler that decodes.

A user is one pooling request. vLLM schedules, chunks, batches and caches its prompt; when prompts of a step are
finished, this pooler runs the remaining levels for all beams of all those users and returns SIDs instead of an
embedding. Beam codes never reach the scheduler, hold no cache blocks, and nothing crosses processes between levels.

Shapes: U users, R live beams, W beams of the fullest user, n codes so far, K codes, D model width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.pooler.abstract import Pooler

from service.engine.base import BeamRequest
from service.engine.catalog_versions import CatalogVersions
from service.engine.vllm_attention import BeamKV, gather_prompt_kv
from service.engine.wire import decode_request, encode_beams, unknown_version
from service.errors import UnknownVersionError
from service.model.beam import BeamQuery, beam_search, level_log_probs
from service.model.torch_beam import beam_places


class WorkerBeamModel:
    """A `BeamModel` on vLLM's layers: beams as a [U, W] grid of rows of one forward pass over a `BeamKV`."""

    def __init__(self, model: Any, config: VllmConfig, last_UD: Tensor, length_U: Tensor, kv: BeamKV) -> None:
        self._model = model
        self._config = config
        self._last_UD = last_UD
        self._length_U = length_U
        self._kv = kv
        self._layers = dict.fromkeys(kv.prompt, kv)
        self._cell_R = torch.tensor([])

    def first(self) -> Tensor:
        """Log-probabilities of the first code, float32 [U, K]."""
        return level_log_probs(self._last_UD, self._model.level_head(0))

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Log-probabilities of the next code, float32 [R, K]."""
        users, level = self._length_U.numel(), codes_Rn.shape[1]
        place_R = beam_places(user_R)
        width = int(place_R.max()) + 1
        rows = users * width
        cell_R = user_R * width + place_R
        # cells without a beam repeat the first one's keys and hold code 0; nobody reads what comes of them
        if level > 1:
            old_cell = torch.zeros(rows, dtype=torch.int64)
            old_cell[cell_R] = self._cell_R[parent_R]
            self._kv.reorder(old_cell)
        self._kv.width, self._cell_R = width, cell_R
        codes = torch.zeros(rows, level, dtype=torch.int64)
        codes[cell_R] = codes_Rn
        position = (self._length_U[:, None] + level - 1).repeat(1, width).flatten()
        inputs = self._model.embed_last_code(codes)
        with set_forward_context(self._layers, self._config, num_tokens=rows, slot_mapping={}, skip_compiled=True):
            hidden = self._model.model(None, position, None, inputs)
        return level_log_probs(hidden[cell_R], self._model.level_head(level))


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
        cursor = pooling_metadata.get_pooling_cursor()
        params = pooling_metadata.pooling_params
        if self._model.attention_metadata is None:  # vLLM's profiling run has no requests of ours
            return [torch.zeros(1) for _ in params]
        outputs: list[Tensor | None] = [None] * len(params)
        queries: dict[int, BeamQuery] = {}
        for index, finished in enumerate(cursor.get_finished_mask()):
            if finished:
                request = decode_request(params[index].extra_kwargs)
                query = self._query(request)
                if query is None:
                    outputs[index] = unknown_version(request.catalog_version)
                else:
                    queries[index] = query
        if queries:
            members = list(queries)
            last_UD = hidden_states[cursor.last_token_indices_gpu[members]]
            length_U = cursor.prompt_lens_cpu[members].long()
            model = WorkerBeamModel(self._model, self._config, last_UD, length_U, self._prompt_kv(members, length_U))
            beams = beam_search(model, list(queries.values()), log_boost=self._log_boost)
            for index, found in zip(members, beams, strict=True):
                outputs[index] = encode_beams(found)
        return outputs

    def _query(self, request: BeamRequest) -> BeamQuery | None:
        try:
            return self.versions.query(request)
        except UnknownVersionError:
            return None

    def _prompt_kv(self, members: Sequence[int], length_U: Tensor) -> BeamKV:
        longest = int(length_U.max())
        block_size = self._config.cache_config.block_size
        blocks = -(-longest // block_size)
        table = self._model.attention_metadata.block_table[members][:, :blocks].long()
        prompt = {name: gather_prompt_kv(layer, table, longest, block_size) for name, layer in self._attention_layers()}
        if int(length_U.min()) == longest:
            return BeamKV(len(members), 0, prompt, None)
        padded_UP = torch.arange(longest)[None] >= length_U[:, None]
        for key, value in prompt.values():
            # blocks behind a prompt's end may hold anything, NaN too: 0 * NaN would spread through the product
            padded_XP = padded_UP.repeat_interleave(value.shape[0] // len(members), 0)
            value.masked_fill_(padded_XP[..., None], 0)
            key.masked_fill_(padded_XP[:, None], 0)
        padding_UP = torch.zeros(padded_UP.shape, dtype=last_dtype(prompt)).masked_fill(padded_UP, float("-inf"))
        return BeamKV(len(members), 0, prompt, padding_UP)

    def _attention_layers(self) -> list[tuple[str, Any]]:
        layers = self._config.compilation_config.static_forward_context.items()
        return [(name, layer) for name, layer in layers if isinstance(layer, Attention)]


def last_dtype(prompt: dict[str, tuple[Tensor, Tensor]]) -> torch.dtype:
    """The dtype of the cached keys."""
    return next(iter(prompt.values()))[0].dtype
