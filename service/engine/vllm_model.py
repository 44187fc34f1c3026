"""vLLM models of a grounded LM: any causal-LM class plus PrefixMem on its inputs and the beam as its pooler.

A prompt token's memory depends on the codes before it, which may have been computed in an earlier chunk or come from
the prefix cache. So each KV slot also remembers its token id, written through the step's slot mapping and read
through its block table: a slot pins prefix and position, hence this is right under chunking, caching and batching
alike. On the V2 runner (CUDA) `vllm_cuda` looks the tokens up instead and passes them in.

Shapes: T tokens of a step, P look-back depth, n codes, R rows, L levels, K codes per level, D model width.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.engine.base import TokenRow
from service.engine.catalog_versions import CatalogVersions
from service.engine.vllm_beam import BeamPooler
from service.engine.vllm_interfaces import (
    GemmaForCausalLM,
    LlamaForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    VllmConfig,
    get_forward_context,
    local_rows,
    sum_over_ranks,
)
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
        place = {"device": vllm_config.device_config.device, "dtype": vllm_config.model_config.dtype}
        object.__setattr__(self, "_memory", None if memory is None else memory.to(**place))
        self._cache_config = vllm_config.cache_config
        self._slot_token: Tensor | None = None
        self._heads_LKD: Tensor | None = None
        self.attention_metadata: Any = None
        trained_NL = checkpoint.catalog_tensors().codes_NL
        versions = CatalogVersions(
            trained_NL, self.space.codes, options.groundrec_versions_kept, device=place["device"]
        )
        self.pooler = BeamPooler(self, vllm_config, versions, math.log(options.groundrec_boost))

    @staticmethod
    def get_model_state_cls() -> type:
        """Asked for by the V2 runner alone; what it imports exists on CUDA only."""
        from service.engine.vllm_cuda import LookBackState

        return LookBackState

    @property
    def lookback_depth(self) -> int:
        """P: how many tokens before one decide its memory."""
        return max(self.space.levels - 1, 1)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        previous_TP: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The base model on embeddings that carry the prefix memory, float [T, D].

        ``previous_TP`` are the ids of the tokens before each, nearest first, -1 before the prompt's start; without them
        they are read from the slots.
        """
        if previous_TP is None:
            metadata = get_forward_context().attn_metadata
            self.attention_metadata = next(iter(metadata.values())) if metadata else None
        if inputs_embeds is None:
            inputs_embeds = self._embed_prompt(input_ids, positions, previous_TP)
        # without ids, as in the beam's steps: a compiled model is traced once and must fit both
        hidden: Tensor = super().forward(None, positions, intermediate_tensors, inputs_embeds)  # type: ignore[misc]
        return hidden

    def level_head(self, level: int) -> Tensor:
        """The K output rows of one level, [K, D]; all of them on every rank."""
        return self._heads()[level]

    def embed_last_code(self, codes_Rn: Tensor) -> Tensor:
        """Input embeddings [R, D] of the last code of each prefix."""
        level = codes_Rn.shape[1] - 1
        embedded: Tensor = self.embed_input_ids(codes_Rn[:, -1] + self.space.level_start(level))  # type: ignore[attr-defined]
        if self._memory is None:  # type: ignore[attr-defined]
            return embedded
        memory: Tensor = self._memory.item_embeddings(codes_Rn)[:, -1]  # type: ignore[attr-defined]
        return embedded + memory.to(embedded.dtype)

    @torch.inference_mode()
    def write_tokens(self, rows: Sequence[TokenRow]) -> bool:
        """Put embedding rows in place; whether cached prompts may hold one of the tokens.

        Raises:
            ValueError: a row is of another width, or no token of the space.
        """
        heads_LKD, embedding = self._heads(), self.model.embed_tokens  # type: ignore[attr-defined]
        for row in rows:
            self._check_row(row, heads_LKD.shape[2])
        here, weight = local_rows(embedding), embedding.weight.data
        tokens = [self.space.level_start(row.level) + row.code for row in rows]
        for row, token in zip(rows, tokens, strict=True):
            heads_LKD[row.level, row.code] = torch.tensor(row.output_D).to(heads_LKD)
            if token in here:
                weight[token - here.start] = torch.tensor(row.input_D).to(weight)
        return self._may_be_cached(tokens)

    def _check_row(self, row: TokenRow, width: int) -> None:
        if not (0 <= row.level < self.space.levels and 0 <= row.code < self.space.codes):
            raise ValueError(f"level {row.level}, code {row.code} is no token of this model")
        if len(row.input_D) != width or len(row.output_D) != width:
            raise ValueError(f"an embedding row has {width} numbers, not {len(row.input_D)} and {len(row.output_D)}")

    def _may_be_cached(self, tokens: Sequence[int]) -> bool:
        if self._slot_token is None:
            return True
        return bool(torch.isin(self._slot_token, torch.tensor(tokens, dtype=torch.int32)).any())

    def _heads(self) -> Tensor:
        """Output rows of all levels, [L, K, D]: a copy, so that a tied model's two sides may be written apart."""
        if self._heads_LKD is None:
            self._heads_LKD = self._gather_heads()
        return self._heads_LKD

    def _gather_heads(self) -> Tensor:
        head: Any = self.lm_head  # type: ignore[attr-defined]
        place = local_rows(head)
        rows = head.weight.new_zeros(self.space.num_tokens, head.weight.shape[1])
        first, last = max(place.start, self.space.first_token_id), min(place.stop, self.space.end_token_id)
        if first < last:
            here = head.weight[first - place.start : last - place.start]
            rows[first - self.space.first_token_id : last - self.space.first_token_id] = here
        return sum_over_ranks(rows).view(self.space.levels, self.space.codes, -1)

    def _embed_prompt(self, token_T: Tensor, position_T: Tensor, previous_TP: Tensor | None) -> Tensor:
        embedded: Tensor = self.embed_input_ids(token_T)  # type: ignore[attr-defined]
        if previous_TP is None:
            previous_TP = self._previous_tokens(token_T, position_T)
        if self._memory is None:  # type: ignore[attr-defined]
            return embedded
        prefix = current_item_prefix(self.space, token_T, previous_TP)
        memory: Tensor = self._memory.token_embeddings(*prefix)  # type: ignore[attr-defined]
        return embedded + memory.to(embedded.dtype)

    def _previous_tokens(self, token_T: Tensor, position_T: Tensor) -> Tensor:
        """The ids of the P tokens before each, nearest first, -1 before the prompt's start, int64 [T, P]."""
        metadata = self.attention_metadata
        if metadata is None:
            return torch.full((token_T.shape[0], self.lookback_depth), -1)
        slots, block_size = self._slot_tokens(), self._cache_config.block_size
        actual = metadata.num_actual_tokens
        slots[metadata.slot_mapping[:actual].long()] = token_T[:actual].to(torch.int32)
        index_T = torch.arange(token_T.shape[0])
        request_T = torch.searchsorted(metadata.query_start_loc[1:].contiguous().long(), index_T, right=True)
        request_T = request_T.clamp(max=metadata.query_start_loc.numel() - 2)
        back_TP = position_T[:, None] - torch.arange(1, self.lookback_depth + 1)
        safe_TP = back_TP.clamp(min=0)
        block_TP = metadata.block_table[request_T[:, None], safe_TP // block_size].long()
        return torch.where(back_TP >= 0, slots[block_TP * block_size + safe_TP % block_size].long(), -1)

    def _slot_tokens(self) -> Tensor:
        if self._slot_token is None:
            slots = self._cache_config.num_gpu_blocks * self._cache_config.block_size
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
