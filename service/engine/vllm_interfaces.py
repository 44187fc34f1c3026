"""Every interface of vLLM that is private, or undocumented, and that this code relies on: named here and nowhere else.

The other ``vllm_*`` modules import vLLM through this one. Before an engine starts, `check_interfaces` looks each name
up and compares its parameters or fields with what the code uses, so that a moved interface is an error with its name
instead of a wrong answer. What is only used on CUDA is checked where it is imported, in `vllm_cuda`.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm import ModelRegistry as ModelRegistry
from vllm import PoolingParams as PoolingParams
from vllm import _custom_ops as _ops
from vllm.config import VllmConfig as VllmConfig
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.engine.arg_utils import EngineArgs as EngineArgs
from vllm.forward_context import get_forward_context as get_forward_context
from vllm.forward_context import set_forward_context as set_forward_context
from vllm.inputs.engine import tokens_input as tokens_input
from vllm.model_executor.layers.attention import Attention as Attention
from vllm.model_executor.layers.pooler.abstract import Pooler as Pooler
from vllm.model_executor.models.gemma import GemmaForCausalLM as GemmaForCausalLM
from vllm.model_executor.models.llama import LlamaForCausalLM as LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM as Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM as Qwen3ForCausalLM
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as CPUAttentionBackend
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as CPUAttentionBackendImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum as AttentionBackendEnum
from vllm.v1.attention.backends.registry import register_backend as register_backend
from vllm.v1.engine.llm_engine import LLMEngine as LLMEngine

from service.errors import VersionError

_FORWARD = ("input_ids", "positions", "intermediate_tensors", "inputs_embeds")
_ATTENTION = ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output")

# dotted name -> the parameters of a function or method, or the fields of a dataclass, that we use
INTERFACES: Mapping[str, Sequence[str]] = {
    "vllm.engine.arg_utils.EngineArgs": (
        "model",
        "hf_overrides",
        "runner",
        "kv_cache_memory_bytes",
        "worker_extension_cls",
        "skip_tokenizer_init",
    ),
    "vllm.v1.engine.llm_engine.LLMEngine.from_engine_args": ("engine_args", "enable_multiprocessing"),
    "vllm.v1.engine.llm_engine.LLMEngine.add_request": ("request_id", "prompt", "params"),
    "vllm.v1.engine.llm_engine.LLMEngine.abort_request": ("request_ids",),
    "vllm.v1.engine.llm_engine.LLMEngine.step": (),
    "vllm.v1.engine.llm_engine.LLMEngine.has_unfinished_requests": (),
    "vllm.v1.engine.llm_engine.LLMEngine.reset_prefix_cache": ("reset_running_requests",),
    "vllm.v1.engine.llm_engine.LLMEngine.collective_rpc": ("method", "args"),
    "vllm.v1.core.block_pool.BlockPool.get_num_free_blocks": (),
    "vllm.pooling_params.PoolingParams": ("task", "extra_kwargs"),
    "vllm.forward_context.set_forward_context": (
        "attn_metadata",
        "vllm_config",
        "num_tokens",
        "slot_mapping",
        "skip_compiled",
    ),
    "vllm.forward_context.ForwardContext": ("attn_metadata",),
    "vllm.v1.pool.metadata.PoolingCursor": ("last_token_indices_gpu", "prompt_lens_cpu", "finished_mask"),
    "vllm.v1.pool.metadata.PoolingMetadata": ("pooling_params",),
    "vllm.model_executor.layers.pooler.abstract.Pooler.forward": ("hidden_states", "pooling_metadata"),
    "vllm.model_executor.layers.pooler.abstract.Pooler.get_supported_tasks": (),
    "vllm.v1.attention.backends.cpu_attn.CPUAttentionMetadata": (
        "num_actual_tokens",
        "query_start_loc",
        "block_table",
        "slot_mapping",
    ),
    "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl.forward": _ATTENTION,
    "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend.get_impl_cls": (),
    "vllm.v1.attention.backends.registry.register_backend": ("backend", "class_path"),
    "vllm._custom_ops.cpu_attn_reshape_and_cache": ("key", "value", "key_cache", "value_cache", "slot_mapping", "isa"),
    "vllm.config.compilation.CompilationConfig": ("static_forward_context",),
    "vllm.config.cache.CacheConfig": ("block_size", "num_gpu_blocks"),
    "vllm.distributed.tensor_model_parallel_all_reduce": ("input_",),
    "vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbeddingShardIndices": (
        "padded_org_vocab_start_index",
        "padded_org_vocab_end_index",
    ),
    "vllm.model_executor.models.llama.LlamaForCausalLM.forward": _FORWARD,
    "vllm.model_executor.models.qwen2.Qwen2ForCausalLM.forward": _FORWARD,
    "vllm.model_executor.models.qwen3.Qwen3ForCausalLM.forward": _FORWARD,
    "vllm.model_executor.models.gemma.GemmaForCausalLM.forward": _FORWARD,
}


def check_interfaces(interfaces: Mapping[str, Sequence[str]] = INTERFACES) -> None:
    """Refuse a vLLM whose interfaces are not those this code was written against.

    Raises:
        VersionError: a name is gone, or lacks a parameter or field; says which.
    """
    for name, wanted in interfaces.items():
        missing = set(wanted) - _members(name)
        if missing:
            raise VersionError(f"vLLM's {name} has no {', '.join(sorted(missing))}; install the pinned vLLM")


def write_cpu_cache(token_SHD: Tensor, isa: str) -> tuple[Tensor, Tensor]:
    """Let vLLM pack equal keys and values of one block into a CPU cache; its halves, each [1, H, S, D]."""
    size, heads, width = token_SHD.shape
    cache = torch.zeros(1, heads, 2 * size, width, dtype=token_SHD.dtype)
    keys, values = cache.chunk(2, dim=2)
    _ops.cpu_attn_reshape_and_cache(token_SHD, token_SHD, keys, values, torch.arange(size), isa)
    return keys, values


def attention_layers(config: VllmConfig) -> dict[str, Any]:
    """The model's attention layers by name; each has its ``kv_cache`` once the cache exists."""
    layers = config.compilation_config.static_forward_context.items()
    return {name: layer for name, layer in layers if isinstance(layer, Attention)}


def local_rows(embedding: Any) -> range:
    """The token ids whose rows this rank holds, of a vocabulary-parallel embedding or head."""
    shard = embedding.shard_indices
    return range(shard.padded_org_vocab_start_index, shard.padded_org_vocab_end_index)


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every tensor-parallel rank's tensor, on each rank."""
    total: Tensor = tensor_model_parallel_all_reduce(tensor)
    return total


def free_blocks(engine: LLMEngine) -> int:
    """How many blocks of the KV cache nobody holds (cached prompts count as free)."""
    core: Any = engine.engine_core
    return int(core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def _members(name: str) -> set[str]:
    found = _resolve(name)
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    if hasattr(found, "__struct_fields__"):
        return set(found.__struct_fields__)
    return set(inspect.signature(found).parameters)


def _resolve(name: str) -> Any:
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        if found is not None:
            return found
    raise VersionError(f"vLLM has no {name}; install the pinned vLLM")
