"""Contenders without vLLM: Hugging Face's constrained beam search, and a plain torch loop with KV copied per beam.

Both run the checkpoint's model with SDPA attention. Hugging Face's knows the text model only (no prefix memory, in its
favour); the loop has the memory and scores as ours does, so its ranking in fp32 must be ours. It shares no beam and no
trie code with the engine: that makes it a witness.

Shapes: U users, T prompt tokens, W beams, R = U * W rows, E candidate edges, L levels, K codes, D model width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from loadtest.engine.contender import Answer, Batch, Host, HostSpec
from loadtest.engine.sorted_sids import SortedSids
from service.model.checkpoint import open_checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.semantic_ids import Sid

NEVER = float("-inf")


def open_host(spec: HostSpec) -> Host:
    """Load the model; a compiled variant does not exist here.

    Raises:
        ValueError: it was asked for.
    """
    if spec.compiled:
        raise ValueError("the torch contenders run eager only")
    torch.set_num_threads(spec.threads)
    checkpoint = open_checkpoint(Path(spec.checkpoint), verify=False)
    model = load_grounded_lm(checkpoint, getattr(torch, spec.dtype)).to(spec.device)
    model.lm.set_attn_implementation("sdpa")
    sids = SortedSids(checkpoint.catalog_tensors().codes_NL, checkpoint.space)
    return Host({"hf_generate": HfGenerate(model, sids), "torch_loop": TorchLoop(model, sids)})


class HfGenerate:
    """``generate`` with ``prefix_allowed_tokens_fn``, the way most published code decodes SIDs."""

    def __init__(self, model: GroundedLM, sids: SortedSids) -> None:
        self._model = model
        self._sids = sids
        self._legal: dict[Sid, list[int]] = {}

    def prepare(self, batch: Batch) -> None:
        """Keep what earlier runs learned of legal tokens: a user would."""
        _refuse(batch)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Answer]:
        """Beam search over legal tokens."""
        space, length = self._model.space, len(batch.prompts[0])
        token_UT = torch.tensor([list(prompt) for prompt in batch.prompts], device=self._model.sid_rows.device)
        lm: Any = self._model.lm
        output = lm.generate(
            token_UT,
            attention_mask=torch.ones_like(token_UT),
            num_beams=batch.beam,
            num_return_sequences=batch.beam,
            max_new_tokens=space.levels,
            min_new_tokens=space.levels,
            do_sample=False,
            prefix_allowed_tokens_fn=lambda _, ids: self._allowed(ids[length:].tolist()),
            renormalize_logits=True,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=0,
            eos_token_id=None,
        )
        return self._answers(output.sequences[:, length:].tolist(), output.sequences_scores.tolist(), batch.beam)

    def _allowed(self, tokens: Sequence[int]) -> list[int]:
        space = self._model.space
        codes = tuple(token - space.level_start(level) for level, token in enumerate(tokens))
        if codes not in self._legal:
            found = self._sids.children(codes) + space.level_start(len(codes))
            self._legal[codes] = found.tolist() or [0]
        return self._legal[codes]

    def _answers(self, tokens: list[list[int]], scores: list[float], beam: int) -> list[Answer]:
        space = self._model.space
        sids = [tuple(token - space.level_start(level) for level, token in enumerate(row)) for row in tokens]
        starts = range(0, len(sids), beam)
        return [Answer(tuple(sids[at : at + beam]), tuple(scores[at : at + beam])) for at in starts]


class TorchLoop:
    """The prompt once, then L - 1 steps of U * W rows on a cache that holds the prompt once per beam."""

    def __init__(self, model: GroundedLM, sids: SortedSids) -> None:
        self._model = model
        self._sids = sids

    def prepare(self, batch: Batch) -> None:
        """Nothing to prepare."""
        _refuse(batch)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Answer]:
        """Level by level; prompts must be equally long."""
        users, levels = len(batch.prompts), self._model.space.levels
        token_UT = torch.tensor([list(prompt) for prompt in batch.prompts], device=self._model.sid_rows.device)
        cache = DynamicCache(config=self._model.lm.config)
        hidden_RD = self._forward(self._model.embed_tokens(token_UT), cache)
        score_UW = torch.zeros(users, 1)
        prefix_R = np.zeros(users, np.int64)
        for level in range(levels):
            logits_RK = F.linear(hidden_RD, self._model.level_head(level)).float().cpu()
            score_UW, parent_R, prefix_R = self._select(level, score_UW, prefix_R, logits_RK.log_softmax(-1), batch)
            if level + 1 < levels:
                cache.reorder_cache(parent_R.to(token_UT.device))  # type: ignore[arg-type]
                hidden_RD = self._forward(self._embed(level, prefix_R), cache)
        prefix_UW = prefix_R.reshape(users, -1).tolist()
        return [self._answer(*row) for row in zip(prefix_UW, score_UW.tolist(), strict=True)]

    def _forward(self, inputs_RTD: Tensor, cache: DynamicCache) -> Tensor:
        output = self._model.lm.base_model(inputs_embeds=inputs_RTD, past_key_values=cache, use_cache=True)
        hidden: Tensor = output.last_hidden_state[:, -1]
        return hidden

    def _embed(self, level: int, prefix_R: NDArray[np.int64]) -> Tensor:
        powers = self._sids.codes ** np.arange(level, -1, -1, dtype=np.int64)
        codes_Rn = torch.from_numpy(prefix_R[:, None] // powers % self._sids.codes)
        return self._model.embed_items(codes_Rn.to(self._model.sid_rows.device))[:, -1:]

    def _select(
        self,
        level: int,
        score_UW: Tensor,
        prefix_R: NDArray[np.int64],
        logp_RK: Tensor,
        batch: Batch,
    ) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """The best children of each user: scores [U, W], the rows they extend [R] and their prefixes [R]."""
        users, width = score_UW.shape
        row_E, child_E = self._sids.expand(level, prefix_R)
        row, code = torch.from_numpy(row_E), torch.from_numpy(child_E % self._sids.codes)
        grid_RK = torch.full_like(logp_RK, NEVER)
        grid_RK[row, code] = score_UW.flatten()[row] + logp_RK[row, code]
        kept = min(batch.beam, width * self._sids.codes)
        best_UW, place_UW = grid_RK.view(users, -1).topk(kept)
        parent_R = (place_UW // self._sids.codes + torch.arange(users)[:, None] * width).flatten()
        code_R = (place_UW % self._sids.codes).flatten().numpy()
        return best_UW, parent_R, prefix_R[parent_R.numpy()] * self._sids.codes + code_R

    def _answer(self, prefixes: Sequence[int], scores: Sequence[float]) -> Answer:
        found = [
            (self._sids.sid(int(prefix)), score)
            for prefix, score in zip(prefixes, scores, strict=True)
            if np.isfinite(score)
        ]
        return Answer(tuple(sid for sid, _ in found), tuple(score for _, score in found))


def _refuse(batch: Batch) -> None:
    if batch.legal_share < 1:
        raise ValueError("this contender has no filters")
    if len({len(prompt) for prompt in batch.prompts}) != 1:
        raise ValueError("the torch contenders need prompts of one length")
