"""CUDA: shared prompts on vLLM's FlashAttention backend, and the V2 model runner's hook for the prefix memory.

Written from vLLM's source; no line of it has run on a GPU yet (``tests/gpu`` waits for one). The beam is the plain
torch of `shared_prefix` on dense copies of the prompts; the step that would make it fast, FlashAttention over the
block table with a merge by log-sum-exp, is left to whoever can measure it. The V2 runner captures the model in CUDA
graphs, so what depends on the step must lie in buffers that stay in place: the tokens before each token are such one.

Shapes: T tokens of a step, P look-back depth.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from service.engine.shared_prefix import BeamKV
from service.engine.vllm_attention import attend_beams


class BeamFlashImpl(FlashAttentionImpl):  # type: ignore[misc]
    """vLLM's FlashAttention, and shared prompts when the metadata is a `BeamKV`."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """As the base class; beam rows never touch ``kv_cache``."""
        if isinstance(attn_metadata, BeamKV):
            return attend_beams(self, layer, query, key, value, attn_metadata, output)
        result: Tensor = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        return result


class BeamFlashBackend(FlashAttentionBackend):  # type: ignore[misc]
    """The backend that vLLM is told to use on CUDA."""

    @staticmethod
    def get_impl_cls() -> type[BeamFlashImpl]:
        """The implementation above."""
        return BeamFlashImpl


class LookBackState(DefaultModelState):  # type: ignore[misc]
    """Hands the model, beside its inputs, the tokens before each token of the step."""

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        depth = model.lookback_depth
        self._back_P = torch.arange(1, depth + 1, device=device)
        self._previous_TP = torch.full((self.max_num_tokens, depth), -1, dtype=torch.int64, device=device)

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Tensor | None]:
        """The base class's inputs and ``previous_TP``, see `GroundedMixin.forward`."""
        inputs: dict[str, Tensor | None] = super().prepare_inputs(input_batch, req_states)
        tokens = input_batch.num_tokens
        index_T = torch.arange(tokens, device=self._previous_TP.device)
        place_T = torch.searchsorted(input_batch.query_start_loc[1:].contiguous().long(), index_T, right=True)
        request_T = input_batch.idx_mapping[place_T.clamp(max=input_batch.num_reqs - 1)].long()
        back_TP = input_batch.positions[:tokens, None] - self._back_P
        found_TP = req_states.all_token_ids.gpu[request_T[:, None], back_TP.clamp(min=0)].long()
        self._previous_TP[:tokens] = torch.where(back_TP >= 0, found_TP, -1)
        return {**inputs, "previous_TP": self._previous_TP[: input_batch.num_tokens_after_padding]}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """The same buffer, for warm-up and capture."""
        return {**super().prepare_dummy_inputs(num_reqs, num_tokens), "previous_TP": self._previous_TP[:num_tokens]}

    def prepare_attn(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The base class's metadata; the model remembers it, since a replayed graph runs no Python of its forward."""
        metadata: dict[str, Any] = super().prepare_attn(*args, **kwargs)
        self.model.attention_metadata = next(iter(metadata.values()), None)
        return metadata
