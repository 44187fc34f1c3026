"""Pre-training by classification: linear heads predict the next code from the memory vector of the prefix.

Memory before W_out is trained, so the tables fit any backbone. Rows are counted first; what no training item touches
stays silent. W_out is left at zero: attached, the memory starts without a voice.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from service.model.prefix_memory import PrefixMemory
from training.optimizer import MasterAdamW, ParameterGroup
from training.prefix_memory.base import Lessons, PretrainOptions, PretrainReport, memory_groups, start
from training.progress import Progress, silent


def pretrain_classification(
    memory: PrefixMemory, lessons: Lessons, options: PretrainOptions, progress: Progress = silent
) -> PretrainReport:
    """Train the tables on training occurrences (frequent items count more)."""
    start(memory, lessons, options.seed)
    all_codes, occurrences_M = torch.from_numpy(lessons.codes_NL), lessons.occurrences_M
    config = memory.config
    heads = nn.ModuleList(nn.Linear(config.width, config.codes) for _ in range(config.levels - 1))
    groups = [*memory_groups(memory, options.lr, w_out=False), ParameterGroup([*heads.parameters()], options.lr)]
    optimizer = MasterAdamW(groups, options.steps, warmup=10)
    random = np.random.default_rng(options.seed)
    loss = 0.0
    for step in range(options.steps):
        batch = all_codes[torch.from_numpy(random.choice(occurrences_M, options.batch_size))]
        losses = [F.cross_entropy(logits, batch[:, n + 1]) for n, logits in enumerate(_logits(memory, heads, batch))]
        total = torch.stack(losses).sum()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(total.detach())
        progress(step + 1, options.steps, f"loss {loss:.3f}")
    return _report(memory, heads, lessons, loss)


def _logits(memory: PrefixMemory, heads: nn.ModuleList, codes_BL: Tensor) -> list[Tensor]:
    memory_BLM = memory.item_memory(codes_BL)
    return [head(memory_BLM[:, level]) for level, head in enumerate(heads)]


@torch.no_grad()
def _report(memory: PrefixMemory, heads: nn.ModuleList, lessons: Lessons, loss: float) -> PretrainReport:
    item_N, number_N = np.unique(lessons.occurrences_M, return_counts=True)
    codes_NL, count_N = torch.from_numpy(lessons.codes_NL[item_N]), torch.from_numpy(number_N)
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
