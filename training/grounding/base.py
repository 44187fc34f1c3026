"""What every grounding objective takes and returns.

An objective sees the frozen backbone, the items' SIDs and texts, and makes rows for the L x K new tokens. It never
changes the backbone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.semantic_ids import SidSpace
from training.backbone import Backbone

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class GroundingContext:
    """``codes_NL`` int64 and ``texts`` belong to the same N items; a long objective keeps its state in ``state_file``."""

    backbone: Backbone
    space: SidSpace
    codes_NL: NDArray[np.int64]
    texts: list[str]
    seed: int
    state_file: Path | None = None

    @property
    def vocabulary_VD(self) -> Tensor:
        """The text vocabulary's input embeddings, [V, D], without the new tokens."""
        weight = self.backbone.model.get_input_embeddings().get_parameter("weight").data
        return weight[: self.space.first_token_id]

    @property
    def tied(self) -> bool:
        """Whether the output head is the input embedding."""
        return bool(self.backbone.model.config.tie_word_embeddings)


@dataclass(frozen=True, slots=True)
class GroundingResult:
    """``sid_rows`` float32 [L * K, D]; ``sid_head`` the same for an untied head, None for a tied one; what it cost."""

    sid_rows: Tensor
    sid_head: Tensor | None
    steps: int = 0
    samples: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


class Objective(Protocol):
    """Makes the rows."""

    def ground(self, context: GroundingContext, progress: Progress | None = None) -> GroundingResult:
        """Ground all new tokens."""
        ...


class Clock:
    """Wall and process CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """``(wall, cpu)`` in seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def noisy_mean(vocabulary_VD: Tensor, rows: int, noise: float, seed: int) -> Tensor:
    """The vocabulary's mean plus ``noise`` times its standard deviation, float32 [rows, D]."""
    generator = torch.Generator().manual_seed(seed)
    matrix = vocabulary_VD.float()
    spread = torch.randn(rows, matrix.shape[1], generator=generator) * matrix.std(0)
    return matrix.mean(0) + noise * spread
