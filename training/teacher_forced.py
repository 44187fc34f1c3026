"""Teacher-forced accuracy per level: given the right codes so far, is the next one the most probable of its level?

PrefixMem's own measure (TF-Lk of arXiv 2606.00324), over the held-out items. It looks at all K codes of a level, not
only at those that the trie allows.

Shapes: B users, N items, L levels, P prompt prefix tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.grounded_lm import GroundedLM
from training.data import Example


@torch.no_grad()
def teacher_forced_accuracy(
    model: GroundedLM,
    codes_NL: NDArray[np.integer],
    examples: Sequence[Example],
    *,
    max_items: int = 40,
    batch_size: int = 32,
) -> list[float]:
    """The share of right codes per level, over the targets of ``examples``."""
    model.train(False)
    order = sorted(range(len(examples)), key=lambda number: len(examples[number].history))
    right_L = np.zeros(codes_NL.shape[1])
    for start in range(0, len(order), batch_size):
        batch = [examples[number] for number in order[start : start + batch_size]]
        right_L += _right(model, codes_NL, [(*e.history[-max_items:], e.target) for e in batch])
    return [float(share) for share in right_L / max(len(examples), 1)]


def _right(model: GroundedLM, codes_NL: NDArray[np.integer], sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """How many sequences have their last item's code right, per level, float64 [L]."""
    levels, prefix = codes_NL.shape[1], model.get_buffer("prefix_ids").numel()
    longest = max(len(sequence) for sequence in sequences)
    item_BN = np.zeros((len(sequences), longest), np.int64)
    for row, sequence in enumerate(sequences):
        item_BN[row, : len(sequence)] = sequence
    hidden_BTD = model.hidden(model.embed_sequences(torch.from_numpy(codes_NL.astype(np.int64)[item_BN])))
    row_B = torch.arange(len(sequences))
    before_B = torch.tensor([prefix + levels * (len(sequence) - 1) - 1 for sequence in sequences])
    target_BL = torch.from_numpy(codes_NL[[sequence[-1] for sequence in sequences]].astype(np.int64))
    right = [
        (scores_BK.argmax(-1) == target_BL[:, level]).sum()
        for level in range(levels)
        for scores_BK in [model.level_logits(hidden_BTD[row_B, before_B + level], level, target_BL[:, :level])]
    ]
    return np.array([float(count) for count in right])
