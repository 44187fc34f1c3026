"""Teacher-forced accuracy per level: given the right codes so far, is the next one the most probable of its level?

PrefixMem's own measure (TF-Lk of arXiv 2606.00324), over the held-out items. It looks at all K codes of a level, not
only at those that the trie allows.

Shapes: B users, L levels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.grounded_lm import GroundedLM
from training.batches import ItemTokens, Window, collate
from training.data import Example


@torch.no_grad()
def teacher_forced_accuracy(
    model: GroundedLM,
    items: ItemTokens,
    examples: Sequence[Example],
    *,
    max_items: int = 40,
    batch_size: int = 32,
) -> list[float]:
    """The share of right codes per level, over the targets of ``examples``."""
    model.train(False)
    order = sorted(range(len(examples)), key=lambda number: len(examples[number].history))
    right_L = np.zeros(items.codes_NL.shape[1])
    for start in range(0, len(order), batch_size):
        batch = [examples[number] for number in order[start : start + batch_size]]
        right_L += _right(model, items, [(*e.history[-max_items:], e.target) for e in batch])
    return [float(share) for share in right_L / max(len(examples), 1)]


def _right(model: GroundedLM, items: ItemTokens, sequences: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
    """How many sequences have their last item's code right, per level, float64 [L]."""
    batch = collate([Window(sequence, len(sequence) - 1) for sequence in sequences], items)
    hidden_BTD = model.hidden(model.embed_sequences(batch.codes_BNL, batch.title_BNT))
    before_BL = model.predicting_positions(batch.codes_BNL, batch.title_BNT)[batch.target_BN]
    target_BL = batch.codes_BNL[batch.target_BN]
    row_B = torch.arange(len(sequences))
    right = [
        (scores_BK.argmax(-1) == target_BL[:, level]).sum()
        for level in range(target_BL.shape[1])
        for scores_BK in [model.level_logits(hidden_BTD[row_B, before_BL[:, level]], level, target_BL[:, :level])]
    ]
    return np.array([float(count) for count in right])
