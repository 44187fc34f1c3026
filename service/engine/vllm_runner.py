"""vLLM in this very process: requests go in, steps are taken, answers come out.

The engine process (`vllm_process`) drives it, and so may a benchmark or a test that wants no process and no event loop.
It is synchronous and of one thread. Deadlines are honoured here: between two steps, so that a late request is never
prefilled, and by the pooler, so that one that became late while it was prefilled is not decoded.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions, EngineStatistics, TokenRow
from service.engine.vllm_interfaces import (
    EngineArgs,
    LLMEngine,
    PoolingParams,
    check_interfaces,
    free_blocks,
    tokens_input,
)
from service.engine.vllm_plugin import grounded_architecture
from service.engine.wire import (
    decode_answer,
    encode_delta,
    encode_request,
    encode_tokens,
    tensor_bytes,
    too_late,
    with_cached_tokens,
)
from service.model.checkpoint import Checkpoint

BLOCK_SIZE = 32  # the prefix cache works on full blocks; the CPU kernel wants multiples of 32


class VllmRunner:
    """One vLLM engine on a checkpoint; `vllm_process.engine_environment` says what the process's environment must be.

    Raises:
        VersionError: a private interface of vLLM is not as expected.
        CheckpointError: the backbone's architecture has no grounded class.
    """

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions) -> None:
        check_interfaces()
        arguments = engine_arguments(checkpoint, options, grounded_architecture(checkpoint))
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._levels = checkpoint.space.levels
        self._deadlines: dict[str, float] = {}
        self._late: list[str] = []
        self._answered = self._prompt_tokens = self._cached_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self._late) or bool(self._engine.has_unfinished_requests())

    def statistics(self) -> EngineStatistics:
        """What it holds and what it has done."""
        unfinished = self._engine.get_num_unfinished_requests()
        return EngineStatistics(
            unfinished,
            free_blocks(self._engine),
            self._answered,
            self._prompt_tokens,
            self._cached_tokens,
            int(self._call("groundrec_catalog_bytes")[0]),
        )

    def add(self, request_id: str, prompt_ids: Sequence[int], plain: Mapping[str, Any]) -> None:
        """Take a request in, as `wire.encode_request` gives it.

        Raises:
            ValueError: vLLM refuses it; a prompt that is too long, for one.
        """
        deadline = plain["deadline"]
        if deadline is not None:
            if deadline <= time.monotonic():
                self._late.append(request_id)
                return
            self._deadlines[request_id] = deadline
        params = PoolingParams(task="embed", extra_kwargs=dict(plain))
        try:
            self._engine.add_request(request_id, tokens_input(list(prompt_ids)), params)
        except BaseException:
            self._deadlines.pop(request_id, None)
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests and free what they hold; unknown ones are ignored."""
        self._engine.abort_request(list(request_ids))
        for request_id in request_ids:
            self._deadlines.pop(request_id, None)

    def step(self) -> list[tuple[str, Tensor]]:
        """One step over all requests; those that ended, with their encoded answers (`wire.decode_answer`)."""
        self._drop_late()
        ended = [(request_id, too_late()) for request_id in self._late]
        self._late.clear()
        if self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self._deadlines.pop(output.request_id, None)
                self._answered += 1
                self._prompt_tokens += len(output.prompt_token_ids)
                self._cached_tokens += output.num_cached_tokens
                ended.append((output.request_id, with_cached_tokens(output.outputs.data, output.num_cached_tokens)))
        return ended

    def update_catalog(self, delta: CatalogDelta) -> None:
        """Make a catalogue version known.

        Raises:
            ValueError: it does not follow the latest one.
        """
        self._call("groundrec_update_catalog", encode_delta(delta))

    def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """Put embedding rows into the model; forget cached prompts if one of them holds such a token.

        Raises:
            ValueError: a row does not fit the model.
        """
        if any(self._call("groundrec_write_tokens", encode_tokens(rows))):
            self.forget_prompts()

    def forget_prompts(self) -> None:
        """Empty the prefix cache."""
        self._engine.reset_prefix_cache(reset_running_requests=True)

    def recommend(self, requests: Sequence[BeamRequest]) -> list[BeamAnswer]:
        """All answers of a batch, in order: for benchmarks and tests, which have no event loop.

        Raises:
            DeadlineError, UnknownVersionError: as `wire.decode_answer`.
        """
        for number, request in enumerate(requests):
            self.add(str(number), request.prompt_ids, encode_request(request))
        found: dict[str, Tensor] = {}
        while self.busy:
            found.update(self.step())
        return [
            decode_answer(tensor_bytes(found[str(number)]), self._levels, request.catalog_version)
            for number, request in enumerate(requests)
        ]

    def close(self) -> None:
        """Free everything."""
        self._engine.engine_core.shutdown()

    def _drop_late(self) -> None:
        now = time.monotonic()
        late = [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]
        if late:
            self.abort(late)
            self._late += late

    def _call(self, name: str, *plain: Any) -> list[Any]:
        return list(self._engine.collective_rpc(name, args=plain))


def engine_arguments(checkpoint: Checkpoint, options: EngineOptions, architecture: str) -> dict[str, Any]:
    """VLLM's arguments: a pooling model of ours over the checkpoint's ``lm/``."""
    tokens = longest_prompt(checkpoint) + checkpoint.space.levels
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
        "enforce_eager": not options.compile,
        "max_model_len": tokens,
        "max_num_seqs": options.max_batch_users,
        "max_num_batched_tokens": min(options.prefill_tokens, options.max_batch_users * tokens),
        "block_size": BLOCK_SIZE,
        "kv_cache_memory_bytes": int(options.kv_cache_gib * 2**30),
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "tensor_parallel_size": options.tensor_parallel,
        "worker_extension_cls": "service.engine.vllm_worker.CatalogWorker",
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "disable_log_stats": True,
    }


def longest_prompt(checkpoint: Checkpoint) -> int:
    """The longest prompt the engine takes, in tokens."""
    return checkpoint.prompt.max_tokens
