"""A `BeamModel` on plain torch: the prompt's KV once per user, all beams of a user as extra positions of one row.

Each step re-reads every beam's own few codes against the cached prompt under a block mask, then drops them from the
cache, so the prompt KV is never copied per beam. Used by training evaluation and the torch engine.

Shapes: U users, R live beams, W beams of the fullest user, T prompt tokens, n codes so far, K codes, D model width,
Q = W * n.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from service.model.beam import level_log_probs
from service.model.grounded_lm import GroundedLM


class TorchBeamModel:
    """Scores beams after right-padded prompts.

    Args:
        model: the grounded LM.
        prompts: token ids per user, of any length >= 1.
    """

    def __init__(self, model: GroundedLM, prompts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._length_U = torch.tensor([len(prompt) for prompt in prompts])
        self._longest = int(self._length_U.max())
        self._cache = DynamicCache(config=model.lm.config)
        token_UT = torch.zeros(len(prompts), self._longest, dtype=torch.int64)
        for user, prompt in enumerate(prompts):
            token_UT[user, : len(prompt)] = torch.tensor(prompt)
        output = model.lm.base_model(
            inputs_embeds=model.embed_tokens(token_UT), past_key_values=self._cache, use_cache=True
        )
        self._last_UD: Tensor = output.last_hidden_state[torch.arange(len(prompts)), self._length_U - 1]

    def first(self) -> Tensor:
        """Log-probabilities of the first code, float32 [U, K]."""
        return level_log_probs(self._last_UD, self._model.level_head(0))

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Log-probabilities of the next code, float32 [R, K]; parents need no bookkeeping here."""
        place_R = beam_places(user_R)
        width, length = int(place_R.max()) + 1, codes_Rn.shape[1]
        # places without a beam hold code 0 and are never read
        codes_UWn = torch.zeros(self._length_U.numel(), width, length, dtype=torch.int64)
        codes_UWn[user_R, place_R] = codes_Rn
        offset_Q = torch.arange(length).repeat(width)
        output = self._model.lm.base_model(
            inputs_embeds=self._model.embed_items(codes_UWn).flatten(1, 2),
            position_ids=self._length_U[:, None] + offset_Q[None],
            attention_mask=self._mask(width, length),
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache.crop(-width * length)
        hidden = output.last_hidden_state.unflatten(1, (width, length))[user_R, place_R, -1]
        return level_log_probs(hidden, self._model.level_head(length), self._model.code_bias(codes_Rn))

    def _mask(self, width: int, length: int) -> Tensor:
        """Additive mask [U, 1, Q, T + Q]: a beam sees its user's real prompt and its own earlier codes."""
        lowest = torch.finfo(self._model.dtype).min
        place = torch.arange(width * length)
        same_beam = place[:, None] // length == place[None] // length
        own = same_beam & (place[:, None] >= place[None])
        padding_UT = torch.arange(self._longest)[None] >= self._length_U[:, None]
        seen = torch.cat(
            [
                ~padding_UT[:, None].expand(-1, width * length, -1),
                own[None].expand(padding_UT.shape[0], -1, -1),
            ],
            -1,
        )
        return torch.where(seen[:, None], 0.0, lowest).to(self._model.dtype)


def beam_places(user_R: Tensor) -> Tensor:
    """Each row's number among the rows of its user, int64 [R]; ``user_R`` is ascending."""
    return torch.arange(user_R.numel(), device=user_R.device) - torch.searchsorted(user_R, user_R)
