"""The whole beam inside one vLLM request: a pooler that decodes.

A user is one pooling request. vLLM schedules, chunks, batches and caches its prompt; when prompts of a step are
finished, this pooler runs the remaining levels for all beams of all those users and returns SIDs instead of an
embedding. Beam codes never reach the scheduler, hold no cache blocks, and nothing crosses processes between levels.

Shapes: U users, W beams, l codes so far, L levels, K codes, D model width, R = U * W rows.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.pooler.abstract import Pooler

from service.engine.catalog_versions import CatalogVersions
from service.engine.vllm_attention import BeamKV, gather_prompt_kv
from service.engine.wire import decode_request, encode_beams, unknown_version
from service.model.beam import beam_search, level_log_probs


class WorkerBeamModel:
    """A `BeamModel` on vLLM's layers: beams as rows of one forward pass over a `BeamKV`."""

    def __init__(self, model: Any, config: VllmConfig, last_UD: Tensor, length_U: Tensor, kv: BeamKV) -> None:
        self._model = model
        self._config = config
        self._last_UD = last_UD
        self._length_U = length_U
        self._kv = kv
        self._layers = dict.fromkeys(kv.prompt, kv)

    def first(self) -> Tensor:
        """Log-probabilities of the first code, float32 [U, K]."""
        return level_log_probs(self._last_UD, self._model.level_head(0))

    def next(self, codes_UWl: Tensor, parent_UW: Tensor) -> Tensor:
        """Log-probabilities of the next code, float32 [R, K]."""
        users, width, level = codes_UWl.shape
        if level == 1:
            self._kv.width = width
        else:
            first_row_U = torch.arange(users)[:, None] * width
            self._kv.reorder((first_row_U + parent_UW).flatten())
        position_R = (self._length_U[:, None] + level - 1).repeat(1, width).flatten()
        inputs_RD = self._model.embed_last_code(codes_UWl.flatten(0, 1))
        rows = users * width
        with set_forward_context(self._layers, self._config, num_tokens=rows, slot_mapping={}, skip_compiled=True):
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
        cursor = pooling_metadata.get_pooling_cursor()
        params = pooling_metadata.pooling_params
        if self._model.attention_metadata is None:  # vLLM's profiling run has no requests of ours
            return [torch.zeros(1) for _ in params]
        outputs: list[Tensor | None] = [None] * len(params)
        by_version: dict[int, list[int]] = defaultdict(list)
        requests = [decode_request(param.extra_kwargs, self._model.space.levels) for param in params]
        for index, finished in enumerate(cursor.get_finished_mask()):
            if finished:
                by_version[requests[index][1]].append(index)
        for version, members in by_version.items():
            last_UD = hidden_states[cursor.last_token_indices_gpu[members]]
            length_U = cursor.prompt_lens_cpu[members].long()
            answers = self._decode(version, [requests[index] for index in members], members, last_UD, length_U)
            for index, encoded in zip(members, answers, strict=True):
                outputs[index] = encoded
        return outputs

    def _decode(
        self,
        version: int,
        requests: list[tuple[int, int, Tensor]],
        members: list[int],
        last_UD: Tensor,
        length_U: Tensor,
    ) -> list[Tensor]:
        trie = self.versions.get(version)
        if trie is None:
            return [unknown_version(version)] * len(requests)
        excluded = [trie.find(codes) for _, _, codes in requests]
        model = WorkerBeamModel(self._model, self._config, last_UD, length_U, self._prompt_kv(members, length_U))
        beams = beam_search(
            trie,
            model,
            [width for width, _, _ in requests],
            [leaves[leaves >= 0] for leaves in excluded],
            log_boost=self._log_boost,
        )
        return [encode_beams(found) for found in beams]

    def _prompt_kv(self, members: list[int], length_U: Tensor) -> BeamKV:
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
