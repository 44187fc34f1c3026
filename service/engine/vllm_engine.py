"""vLLM in production: its asynchronous engine, one pooling request per user, the beam inside the worker.

This side holds no model. It turns a `BeamRequest` into a vLLM request, aborts it when the caller goes away, and sends
catalogue deltas to the workers. vLLM cannot restart in place: once dead, every call is an `EngineError`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions, TokenRow
from service.engine.vllm_plugin import ARCHITECTURES, check_version
from service.engine.wire import decode_answer, encode_delta, encode_request
from service.errors import CheckpointError, EngineError
from service.model.checkpoint import Checkpoint

BLOCK_SIZE = 32  # the prefix cache works on full blocks; the CPU kernel wants multiples of 32


class VllmEngine:
    """Implements `service.engine.base.Engine` over ``vllm.v1.engine.async_llm.AsyncLLM``."""

    def __init__(self, llm: Any, checkpoint: Checkpoint) -> None:
        self._llm = llm
        self._levels = checkpoint.space.levels
        self._canary_prompt = checkpoint.prompt.prefix_ids
        self._version = 0
        self._canaries = 0

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`; cancelling aborts the request inside vLLM."""
        from vllm import PoolingParams

        params = PoolingParams(task="embed", extra_kwargs=encode_request(request))
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        try:
            outputs = [output async for output in self._llm.encode(prompt, params, request_id)]
        except Exception as error:
            raise EngineError(f"vLLM could not answer: {type(error).__name__}: {error}") from error
        if not outputs:
            raise EngineError("vLLM ended the request without an answer")
        return decode_answer(outputs[-1].outputs.data, self._levels)

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """See `Engine.update_catalog`."""
        try:
            await self._llm.collective_rpc("groundrec_update_catalog", args=(encode_delta(delta),))
        except Exception as error:
            raise EngineError(f"vLLM did not take catalogue version {delta.version}: {error}") from error
        self._version = delta.version

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """See `Engine.write_tokens`."""
        raise EngineError(f"this engine cannot take {len(rows)} embedding rows while it runs; restart it")

    async def canary(self) -> None:
        """See `Engine.canary`."""
        self._canaries += 1
        await self.recommend(f"canary-{self._canaries}", BeamRequest(self._canary_prompt, 1, self._version))

    async def close(self) -> None:
        """See `Engine.close`."""
        self._llm.shutdown()


async def start_vllm_engine(checkpoint: Checkpoint, options: EngineOptions) -> VllmEngine:
    """Start vLLM's engine process on a checkpoint.

    Raises:
        VersionError: vLLM is missing or not the pinned version.
        CheckpointError: the backbone's architecture has no grounded class.
    """
    check_version()
    architecture = grounded_architecture(checkpoint)
    prepare_environment(options)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(**engine_arguments(checkpoint, options, architecture))
    return VllmEngine(AsyncLLM.from_engine_args(arguments), checkpoint)


def grounded_architecture(checkpoint: Checkpoint) -> str:
    """Our class for the backbone's architecture.

    Raises:
        CheckpointError: there is none.
    """
    name = checkpoint.manifest.lm.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{checkpoint.lm_folder}: vLLM cannot serve architecture {name} here; known: {known}")
    return ARCHITECTURES[name]


def engine_arguments(checkpoint: Checkpoint, options: EngineOptions, architecture: str) -> dict[str, Any]:
    """VLLM's arguments: a pooling model of ours over the checkpoint's ``lm/``."""
    tokens = checkpoint.prompt.max_tokens + checkpoint.space.levels
    return {
        "model": str(checkpoint.lm_folder),
        "hf_overrides": {
            "architectures": [architecture],
            "groundrec_checkpoint": str(Path(checkpoint.folder).absolute()),
            "groundrec_boost": options.smoothing_boost,
            "groundrec_versions_kept": options.versions_kept,
        },
        "runner": "pooling",
        "dtype": options.dtype,
        "enforce_eager": True,
        "max_model_len": tokens,
        "max_num_seqs": options.max_batch_users,
        "max_num_batched_tokens": min(options.prefill_tokens, options.max_batch_users * tokens),
        "block_size": BLOCK_SIZE,
        "kv_cache_memory_bytes": int(options.kv_cache_gib * 2**30),
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "worker_extension_cls": "service.engine.vllm_worker.CatalogWorker",
        "trust_remote_code": False,
        "disable_log_stats": True,
    }


def prepare_environment(options: EngineOptions) -> None:
    """Set what vLLM reads from the environment, before its first import; what the user has set stays."""
    wanted = {
        "VLLM_PLUGINS": "groundrec",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(options.kv_cache_gib))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(options.omp_threads),
        "OMP_WAIT_POLICY": "passive",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
