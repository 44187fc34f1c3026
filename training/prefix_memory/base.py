"""What every pre-training of the prefix memory is given, and what it answers.

A pre-training fills a memory's tables on behaviour before any backbone sees it. It may use a model of its own; that
model and its W_out are thrown away, the tables stay and are attached elsewhere with a fresh W_out.

Shapes: N items, L levels, M occurrences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from service.model.prefix_memory import PrefixMemory
from training.optimizer import ParameterGroup
from training.progress import Progress

TABLE_STD = 0.02


@dataclass(frozen=True, slots=True)
class Lessons:
    """What can be learned from: SIDs int64 [N, L], training sequences of item numbers by user, item texts."""

    codes_NL: NDArray[np.int64]
    sequences: Mapping[str, Sequence[int]]
    texts: Sequence[str]

    @property
    def occurrences_M(self) -> NDArray[np.int64]:
        """Item numbers of all training events."""
        return np.concatenate([np.array(self.sequences[user], np.int64) for user in sorted(self.sequences)])


@dataclass(frozen=True, slots=True)
class PretrainOptions:
    """Length and speed; ``max_items`` is how much history a sequence holds."""

    steps: int
    batch_size: int
    lr: float
    seed: int
    max_items: int = 20


@dataclass(frozen=True, slots=True)
class PretrainReport:
    """How well codes are predicted at the end, over training occurrences.

    ``accuracy`` is per predicted level; ``ceiling``, where it is known, the best that any function of the prefix could
    reach.
    """

    accuracy: tuple[float, ...]
    ceiling: tuple[float, ...]
    loss: float


class Pretraining(Protocol):
    """Trains a memory's tables in place."""

    def __call__(
        self, memory: PrefixMemory, lessons: Lessons, options: PretrainOptions, progress: Progress, /
    ) -> PretrainReport:
        """The tables are counted and drawn anew first; W_out is of no use afterwards."""
        ...


def start(memory: PrefixMemory, lessons: Lessons, seed: int) -> None:
    """Draw the tables anew and count which rows training items touch."""
    torch.manual_seed(seed)
    memory.reset_tables(TABLE_STD, seed)
    item_N, count_N = np.unique(lessons.occurrences_M, return_counts=True)
    memory.count_touches(torch.from_numpy(lessons.codes_NL[item_N]), torch.from_numpy(count_N))


def memory_groups(memory: PrefixMemory, lr: float, *, w_out: bool = True) -> list[ParameterGroup]:
    """The memory's parameters for the optimiser: no decay anywhere, tables apart if their gradients are sparse."""
    tables = list(memory.tables) if memory.sparse_gradients else []
    apart = {id(table) for table in tables} | (set() if w_out else {id(memory.w_out.weight)})
    rest: list[nn.Parameter] = [parameter for parameter in memory.parameters() if id(parameter) not in apart]
    groups = [ParameterGroup(rest, lr)] if rest else []
    return groups + ([ParameterGroup(tables, lr, sparse=True)] if tables else [])
