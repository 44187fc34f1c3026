"""The losses of paired text and SID (GTI eq. 2): text -> SID over a level's codes, SID -> text over words that occur.

Grounding minimises them over the new rows through a frozen backbone; alignment during fine-tuning minimises them over
the whole model. Every batch follows from seed and step alone.

Shapes: B pairs, T tokens, L levels, D model width, M answer tokens of a batch.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from service.model.grounded_lm import GroundedLM
from training.grounding.templates import PairMaker, Pairs
from training.processes import Share

WHOLE = Share()
# pairs of so many batches are sorted by length together, so that little of a batch is padding
POOL_BATCHES = 16


class PairLoss:
    """Batches of pairs and their loss through ``model``.

    Args:
        model: whatever of it wants a gradient gets one.
        pairs: all texts and templates.
        codes_NL: int64, the items' SIDs.
        head_VD: the output rows of the text vocabulary.
        batch_size: pairs a step.
        seed: decides the order.
    """

    def __init__(
        self, model: GroundedLM, pairs: PairMaker, codes_NL: Tensor, head_VD: Tensor, batch_size: int, seed: int
    ) -> None:
        self._model, self._pairs, self._codes_NL, self._head_VD = model, pairs, codes_NL, head_VD
        self._used_tokens = pairs.used_tokens()
        lengths_N = np.array([len(ids) for ids in pairs.text_ids])
        self._pool = lru_cache(1)(lambda pool: pool_batches(lengths_N, batch_size, seed, pool))

    def loss(self, step: int, share: Share = WHOLE) -> Tensor:
        """The loss of one batch: odd steps ask for the SID, even ones for the text.

        Of a ``share`` of the batch it is scaled so that the average over shares is the batch's loss.
        """
        batch = self._pool(step // POOL_BATCHES)[step % POOL_BATCHES]
        items = share.of(batch)
        if step % 2:
            return share.scale(len(items), len(batch)) * self._sid_loss(items or batch[:1], step // 2)
        scale = share.scale(self._text_tokens(items), self._text_tokens(batch))
        return scale * self._text_loss(items or batch[:1], step // 2)

    def _text_tokens(self, items: list[int]) -> int:
        return sum(len(self._pairs.text_ids[item]) for item in items)

    def _sid_loss(self, items: list[int], template: int) -> Tensor:
        codes_BL = self._codes_NL[items]
        pairs = self._placed(self._pairs.ask_sid(items, codes_BL, template))
        codes_BL = codes_BL.to(pairs.token_BT.device)
        hidden_BLD = pairs.before_answers(self._hidden(pairs.token_BT)).view(*codes_BL.shape, -1)
        losses = [
            F.cross_entropy(self._model.level_logits(hidden_BLD[:, level], level), codes_BL[:, level])
            for level in range(codes_BL.shape[1])
        ]
        return torch.stack(losses).mean()

    def _text_loss(self, items: list[int], template: int) -> Tensor:
        pairs = self._placed(self._pairs.ask_text(items, self._codes_NL[items], template))
        hidden_MD = pairs.before_answers(self._hidden(pairs.token_BT))
        logits = F.linear(hidden_MD, self._head_VD[self._used_tokens].to(hidden_MD.device)).float()
        return F.cross_entropy(logits, torch.searchsorted(self._used_tokens.to(logits.device), pairs.answers_M))

    def _placed(self, pairs: Pairs) -> Pairs:
        device = self._model.sid_rows.device
        return Pairs(pairs.token_BT.to(device), pairs.answer_BT.to(device))

    def _hidden(self, token_BT: Tensor) -> Tensor:
        return self._model.hidden(self._model.embed_tokens(token_BT))


def pool_batches(lengths_N: np.ndarray, batch_size: int, seed: int, pool: int) -> list[list[int]]:
    """The item numbers of the batches of one pool: random items, similar lengths side by side, in random order."""
    random = np.random.default_rng((seed, pool))
    wanted = batch_size * POOL_BATCHES
    drawn = np.concatenate([random.permutation(len(lengths_N)) for _ in range(-(-wanted // len(lengths_N)))])[:wanted]
    by_length = drawn[np.argsort(lengths_N[drawn], kind="stable")].reshape(POOL_BATCHES, batch_size)
    return [[int(item) for item in batch] for batch in random.permutation(by_length)]
