"""Pre-training by classification: linear heads predict the next code from the memory vector of the prefix.

Memory before W_out is trained, so the tables fit any backbone. Rows are counted first; what no training item touches
stays silent. W_out is left at zero: attached, the memory starts without a voice.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from service.model.prefix_memory import PrefixMemory
from training.optimizer import MasterAdamW, ParameterGroup
from training.progress import Progress, silent

TABLE_STD = 0.02


@dataclass(frozen=True, slots=True)
class PretrainReport:
    """Accuracy of the next code after 1..L-1 codes, and the best that any function of the prefix could reach.

    Both over training occurrences, which is what the loss weighs.
    """

    accuracy: tuple[float, ...]
    ceiling: tuple[float, ...]
    loss: float


def pretrain_classification(
    memory: PrefixMemory,
    codes_NL: NDArray[np.int64],
    occurrences_M: NDArray[np.int64],
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
    progress: Progress = silent,
) -> PretrainReport:
    """Train the tables on training occurrences (item numbers [M]; frequent items count more)."""
    torch.manual_seed(seed)
    memory.reset_tables(TABLE_STD, seed)
    all_codes = torch.from_numpy(codes_NL)
    touched, counts = np.unique(occurrences_M, return_counts=True)
    memory.count_touches(all_codes[torch.from_numpy(touched)], torch.from_numpy(counts))
    heads = nn.ModuleList(nn.Linear(memory.config.width, memory.config.codes) for _ in range(codes_NL.shape[1] - 1))
    optimizer = MasterAdamW([ParameterGroup([*memory.tables, *heads.parameters()], lr)], steps, warmup=10)
    random = np.random.default_rng(seed)
    loss = 0.0
    for step in range(steps):
        batch = all_codes[torch.from_numpy(random.choice(occurrences_M, batch_size))]
        losses = [F.cross_entropy(logits, batch[:, n + 1]) for n, logits in enumerate(_logits(memory, heads, batch))]
        total = torch.stack(losses).sum()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(total.detach())
        progress(step + 1, steps, f"loss {loss:.3f}")
    return _report(memory, heads, all_codes[torch.from_numpy(touched)], torch.from_numpy(counts), loss)


def _logits(memory: PrefixMemory, heads: nn.ModuleList, codes_BL: Tensor) -> list[Tensor]:
    memory_BLM = memory.item_memory(codes_BL)
    return [head(memory_BLM[:, level]) for level, head in enumerate(heads)]


@torch.no_grad()
def _report(
    memory: PrefixMemory, heads: nn.ModuleList, codes_NL: Tensor, count_N: Tensor, loss: float
) -> PretrainReport:
    share_N = count_N / count_N.sum()
    hits = [scores.argmax(1) == codes_NL[:, n + 1] for n, scores in enumerate(_logits(memory, heads, codes_NL))]
    accuracy = [float(share_N[hit_N].sum()) for hit_N in hits]
    ceiling = [_majority_share(codes_NL[:, : n + 1], codes_NL[:, n + 1], share_N) for n in range(len(hits))]
    return PretrainReport(tuple(accuracy), tuple(ceiling), loss)


def _majority_share(prefix_Nl: Tensor, next_N: Tensor, share_N: Tensor) -> float:
    """The share that is right if every prefix answers with its most frequent next code."""
    pairs, pair_N = torch.unique(torch.cat([prefix_Nl, next_N[:, None]], 1), dim=0, return_inverse=True)
    share_P = torch.zeros(len(pairs)).index_add_(0, pair_N, share_N)
    groups, group_P = torch.unique(pairs[:, :-1], dim=0, return_inverse=True)
    return float(torch.zeros(len(groups)).scatter_reduce(0, group_P, share_P, "amax").sum())
