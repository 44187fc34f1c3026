"""vLLM as it comes, without our plug-in: its beam search, a loop of one-token requests, and the hardware line.

One generating engine serves all three; its prefix cache is on (the loop needs it) and emptied before each run. It
knows the text model only: no prefix memory, which is in its favour.
"""

from pathlib import Path
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.sampling_params import BeamSearchParams, RequestOutputKind

from loadtest.engine.contender import Answer, Batch, Contender, Host, HostSpec
from loadtest.engine.sorted_sids import SortedSids
from service.model.checkpoint import open_checkpoint
from service.model.semantic_ids import Sid, SidSpace

MAX_SEQUENCES = 512
MAX_LOGPROBS = 1024
BLOCK_SIZE = 32


def open_host(spec: HostSpec) -> Host:
    """Start the engine."""
    checkpoint = open_checkpoint(Path(spec.checkpoint), verify=False)
    llm = LLM(**engine_arguments(spec, str(checkpoint.lm_folder)))
    sids = SortedSids(checkpoint.catalog_tensors().codes_NL, checkpoint.space)
    contenders: dict[str, Contender] = {
        "vllm_beam": VllmBeam(llm, checkpoint.space),
        "one_token": OneTokenLoop(llm, checkpoint.space, sids),
        "line": HardwareLine(llm, checkpoint.space),
    }
    return Host(contenders)


def engine_arguments(spec: HostSpec, model: str) -> dict[str, Any]:
    """The same sizes as ours, but room for one sequence per beam."""
    return {
        "model": model,
        "dtype": spec.dtype,
        "enforce_eager": not spec.compiled,
        "max_model_len": spec.max_tokens,
        "max_num_seqs": MAX_SEQUENCES,
        "max_num_batched_tokens": spec.prefill_tokens,
        "block_size": BLOCK_SIZE,
        "kv_cache_memory_bytes": int(spec.kv_gib * 2**30),
        "enable_prefix_caching": True,
        "max_logprobs": MAX_LOGPROBS,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
    }


class VllmBeam:
    """``LLM.beam_search``: nothing keeps it to SIDs that exist, so its answers are not what was asked for."""

    def __init__(self, llm: LLM, space: SidSpace) -> None:
        self._llm = llm
        self._space = space

    def prepare(self, batch: Batch) -> None:
        """Forget cached prompts."""
        refuse_filters(batch)
        self._llm.reset_prefix_cache()

    def run(self, batch: Batch) -> list[Answer]:
        """L tokens by beam search."""
        params = BeamSearchParams(beam_width=batch.beam, max_tokens=self._space.levels, ignore_eos=True)
        outputs = self._llm.beam_search([{"prompt_token_ids": list(p)} for p in batch.prompts], params)
        return [self._answer(output, len(p)) for output, p in zip(outputs, batch.prompts, strict=True)]

    def _answer(self, output: Any, prompt: int) -> Answer:
        tokens = [beam.tokens[prompt:] for beam in output.sequences]
        return Answer(
            tuple(sid_of(self._space, one) for one in tokens), tuple(b.cum_logprob or 0.0 for b in output.sequences)
        )


class OneTokenLoop:
    """The client's beam: per level one request per beam, whose ``allowed_token_ids`` are the legal next tokens."""

    def __init__(self, llm: LLM, space: SidSpace, sids: SortedSids) -> None:
        self._llm = llm
        self._space = space
        self._sids = sids

    def prepare(self, batch: Batch) -> None:
        """Forget cached prompts."""
        refuse_filters(batch)
        self._llm.reset_prefix_cache()

    def run(self, batch: Batch) -> list[Answer]:
        """Level by level."""
        beams: list[list[tuple[float, Sid]]] = [[(0.0, ())] for _ in batch.prompts]
        for level in range(self._space.levels):
            owners = [(user, beam) for user, found in enumerate(beams) for beam in found]
            legal = [self._sids.children(codes) + self._space.level_start(level) for _, (_, codes) in owners]
            requests = [
                {"prompt_token_ids": [*batch.prompts[user], *self._space.token_ids(codes)]}
                for user, (_, codes) in owners
            ]
            params = [_one_of(tokens.tolist(), batch.beam) for tokens in legal]
            outputs = self._llm.generate(requests, params, use_tqdm=False)
            beams = self._extend(batch, level, owners, outputs)
        return [Answer(tuple(sid for _, sid in found), tuple(score for score, _ in found)) for found in beams]

    def _extend(
        self, batch: Batch, level: int, owners: list[tuple[int, tuple[float, Sid]]], outputs: list[Any]
    ) -> list[list[tuple[float, Sid]]]:
        found: list[list[tuple[float, Sid]]] = [[] for _ in batch.prompts]
        first = self._space.level_start(level)
        for (user, (score, codes)), output in zip(owners, outputs, strict=True):
            for token, logprob in output.outputs[0].logprobs[0].items():
                if np.isfinite(logprob.logprob):
                    found[user].append((score + logprob.logprob, (*codes, token - first)))
        return [sorted(candidates, reverse=True)[: batch.beam] for candidates in found]


class HardwareLine:
    """Plain prefill of as many tokens as the request needs: its prompt and (L - 1) * beam more; answers nothing."""

    def __init__(self, llm: LLM, space: SidSpace) -> None:
        self._llm = llm
        self._space = space
        self._random = np.random.default_rng(0)
        self._prompts: list[dict[str, list[int]]] = []

    def prepare(self, batch: Batch) -> None:
        """Lengthen the prompts with random tokens; a beam of 0 leaves them as they are."""
        self._llm.reset_prefix_cache()
        more = (self._space.levels - 1) * batch.beam
        random, end = self._random, self._space.end_token_id
        self._prompts = [
            {"prompt_token_ids": [*prompt, *random.integers(3, end, more).tolist()]} for prompt in batch.prompts
        ]

    def run(self, batch: Batch) -> list[Answer]:
        """Prefill and one greedy token."""
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        self._llm.generate(self._prompts, params, use_tqdm=False)
        return []


def refuse_filters(batch: Batch) -> None:
    """Only ours filters.

    Raises:
        ValueError: the batch asks for it.
    """
    if batch.legal_share < 1:
        raise ValueError("this contender has no filters")


def sid_of(space: SidSpace, tokens: list[int]) -> Sid:
    """Tokens as codes, -1 where one is no SID token of its level."""
    codes = [token - space.level_start(level) for level, token in enumerate(tokens)]
    return tuple(code if 0 <= code < space.codes else -1 for code in codes)


def _one_of(tokens: list[int], beam: int) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=1,
        logprobs=min(beam, len(tokens)),
        allowed_token_ids=tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
