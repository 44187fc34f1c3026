"""vLLM models of a grounded LM: any causal-LM class plus PrefixMem on its inputs and the beam as its pooler.

A prompt token's memory depends on the codes before it, which may have been computed in an earlier chunk or come from
the prefix cache. So each KV slot also remembers its token id, written through the step's slot mapping and read
through its block table: a slot pins prefix and position, hence this is right under chunking, caching and batching
alike.

Shapes: T tokens of a step, P look-back depth, n codes, R rows, K codes per level, D model width.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.gemma import GemmaForCausalLM
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from service.engine.catalog_versions import CatalogVersions
from service.engine.vllm_beam import BeamPooler
from service.model.checkpoint import open_checkpoint
from service.model.prefix_memory import current_item_prefix


class GroundedMixin:
    """Goes before a vLLM causal-LM class; reads the checkpoint named in the model's configuration."""

    is_pooling_model = True
    default_seq_pooling_type = "LAST"

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        options = vllm_config.model_config.hf_config
        checkpoint = open_checkpoint(Path(options.groundrec_checkpoint), verify=False)
        memory = checkpoint.prefix_memory()
        self.space = checkpoint.space
        # kept off the module tree: vLLM's loader must find every parameter of its own in its own files
        object.__setattr__(self, "_memory", None if memory is None else memory.to(vllm_config.model_config.dtype))
        self._block_size_of = vllm_config.cache_config
        self._slot_token: Tensor | None = None
        self.attention_metadata: Any = None
        trained_NL = checkpoint.catalog_tensors().codes_NL
        versions = CatalogVersions(trained_NL, self.space.codes, options.groundrec_versions_kept)
        self.pooler = BeamPooler(self, vllm_config, versions, math.log(options.groundrec_boost))

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The base model on embeddings that carry the prefix memory, float [T, D]."""
        metadata = get_forward_context().attn_metadata
        self.attention_metadata = next(iter(metadata.values())) if metadata else None
        if inputs_embeds is None:
            inputs_embeds = self._embed_prompt(input_ids, positions)
        hidden: Tensor = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)  # type: ignore[misc]
        return hidden

    def level_head(self, level: int) -> Tensor:
        """The K output rows of one level, [K, D]."""
        first = self.space.level_start(level)
        rows: Tensor = self.lm_head.weight[first : first + self.space.codes]  # type: ignore[attr-defined]
        return rows

    def embed_last_code(self, codes_Rn: Tensor) -> Tensor:
        """Input embeddings [R, D] of the last code of each prefix."""
        level = codes_Rn.shape[1] - 1
        embedded: Tensor = self.embed_input_ids(codes_Rn[:, -1] + self.space.level_start(level))  # type: ignore[attr-defined]
        if self._memory is None:  # type: ignore[attr-defined]
            return embedded
        memory: Tensor = self._memory.item_embeddings(codes_Rn)[:, -1]  # type: ignore[attr-defined]
        return embedded + memory.to(embedded.dtype)

    def _embed_prompt(self, token_T: Tensor, position_T: Tensor) -> Tensor:
        embedded: Tensor = self.embed_input_ids(token_T)  # type: ignore[attr-defined]
        if self._memory is None:  # type: ignore[attr-defined]
            return embedded
        prefix = current_item_prefix(self.space, token_T, self._previous_tokens(token_T, position_T))
        memory: Tensor = self._memory.token_embeddings(*prefix)  # type: ignore[attr-defined]
        return embedded + memory.to(embedded.dtype)

    def _previous_tokens(self, token_T: Tensor, position_T: Tensor) -> Tensor:
        """The ids of the P tokens before each, nearest first, -1 before the prompt's start, int64 [T, P]."""
        depth = max(self.space.levels - 1, 1)
        metadata = self.attention_metadata
        if metadata is None:
            return torch.full((token_T.shape[0], depth), -1)
        slots, block_size = self._slot_tokens(), self._block_size_of.block_size
        actual = metadata.num_actual_tokens
        slots[metadata.slot_mapping[:actual].long()] = token_T[:actual].to(torch.int32)
        index_T = torch.arange(token_T.shape[0])
        request_T = torch.searchsorted(metadata.query_start_loc[1:].contiguous().long(), index_T, right=True)
        request_T = request_T.clamp(max=metadata.query_start_loc.numel() - 2)
        back_TP = position_T[:, None] - torch.arange(1, depth + 1)
        safe_TP = back_TP.clamp(min=0)
        block_TP = metadata.block_table[request_T[:, None], safe_TP // block_size].long()
        return torch.where(back_TP >= 0, slots[block_TP * block_size + safe_TP % block_size].long(), -1)

    def _slot_tokens(self) -> Tensor:
        if self._slot_token is None:
            slots = self._block_size_of.num_gpu_blocks * self._block_size_of.block_size
            self._slot_token = torch.full((slots,), -1, dtype=torch.int32)
        return self._slot_token


class GroundedLlama(GroundedMixin, LlamaForCausalLM):  # type: ignore[misc]
    """Llama (and SmolLM2)."""


class GroundedQwen2(GroundedMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 and Qwen2.5."""


class GroundedQwen3(GroundedMixin, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3."""


class GroundedGemma(GroundedMixin, GemmaForCausalLM):  # type: ignore[misc]
    """Gemma 1; later generations use sliding windows and soft caps that the beam's attention does not do."""
