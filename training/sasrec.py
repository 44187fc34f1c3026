"""SASRec (arXiv 1808.09781) as a baseline: causal self-attention over item ids, trained with the full softmax.

The full softmax over all items instead of one sampled negative is what makes SASRec strong (arXiv 2309.07602), and
these catalogues are small enough. It learns ids from the training sequences only, and stops when validation NDCG@10
has not improved for `patience` checks.

Shapes: B sequences, T positions, N items, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from training.baselines import rank
from training.data import Example, Split
from training.metrics import gains, target_ranks

CHECK_EVERY = 5


@dataclass(frozen=True, slots=True)
class SasRecOptions:
    """Sizes and length of training; ``max_items`` is how much history is read."""

    width: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.3
    max_items: int = 50
    batch_size: int = 64
    lr: float = 1e-3
    max_epochs: int = 200
    patience: int = 4


class SasRec(nn.Module):
    """Implements `training.baselines.Scorer`; item n is row n + 1, row 0 is padding."""

    def __init__(self, items: int, options: SasRecOptions) -> None:
        super().__init__()
        self.options = options
        self.item = nn.Embedding(items + 1, options.width, padding_idx=0)
        self.position = nn.Embedding(options.max_items, options.width)
        self.drop = nn.Dropout(options.dropout)
        layer = nn.TransformerEncoderLayer(
            options.width, options.heads, options.width * 4, options.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(options.width)
        nn.init.normal_(self.item.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, row_BT: Tensor) -> Tensor:
        """Scores of all items after every position, float32 [B, T, N]; sequences are padded on the right."""
        length = row_BT.shape[1]
        inputs = self.item(row_BT) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.norm(self.blocks(self.drop(inputs), mask=mask, is_causal=True))
        scores: Tensor = F.linear(hidden, self.item.weight[1:])
        return scores

    @torch.no_grad()
    def scores(self, history: Sequence[int]) -> NDArray[np.float64]:
        """See `Scorer.scores`."""
        self.train(False)
        recent = torch.tensor([list(history[-self.options.max_items :])]) + 1
        score_N: NDArray[np.float64] = self(recent)[0, -1].double().numpy()
        return score_N


def train_sasrec(split: Split, items: int, options: SasRecOptions, seed: int) -> SasRec:
    """A trained model, with the weights of its best validation."""
    torch.manual_seed(seed)
    model = SasRec(items, options)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.01)
    random = np.random.default_rng(seed)
    sequences = [list(sequence) for _, sequence in sorted(split.train.items()) if len(sequence) > 1]
    best, best_state, checks = -1.0, model.state_dict(), 0
    for epoch in range(options.max_epochs):
        _train_epoch(model, optimizer, sequences, random)
        if (epoch + 1) % CHECK_EVERY:
            continue
        value, checks = validation_ndcg(model, split.valid), checks + 1
        if value > best:
            best, checks = value, 0
            best_state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if checks >= options.patience:
            break
    model.load_state_dict(best_state)
    return model.requires_grad_(False)


def validation_ndcg(model: SasRec, examples: Sequence[Example], k: int = 10) -> float:
    """NDCG@k with seen items removed."""
    ranked = rank(model, examples, length=k, exclude_seen=True)
    return float(gains(target_ranks(ranked, [example.target for example in examples]), k).mean())


def _train_epoch(
    model: SasRec, optimizer: torch.optim.Optimizer, sequences: Sequence[Sequence[int]], random: np.random.Generator
) -> None:
    model.train()
    longest = model.options.max_items + 1
    windows = [window for sequence in sequences for window in _windows(sequence, longest, random)]
    order = random.permutation(len(windows))
    for first in range(0, len(order), model.options.batch_size):
        batch = [windows[n] for n in order[first : first + model.options.batch_size]]
        row_BT = nn.utils.rnn.pad_sequence([torch.tensor(w) + 1 for w in batch], batch_first=True)
        target_BT = row_BT[:, 1:]
        logits_BTN = model(row_BT[:, :-1])
        known = target_BT > 0
        loss = F.cross_entropy(logits_BTN[known], target_BT[known] - 1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _windows(sequence: Sequence[int], longest: int, random: np.random.Generator) -> list[Sequence[int]]:
    """Windows that overlap by one item and cover the sequence; where they are cut is drawn anew each epoch."""
    if len(sequence) <= longest:
        return [sequence]
    ends = [*range(int(random.integers(2, longest + 1)), len(sequence), longest - 1), len(sequence)]
    return [sequence[max(0, end - longest) : end] for end in ends]
