"""What every grounding objective takes and returns.

An objective sees the frozen backbone, the items' SIDs and texts, and makes rows for the L x K new tokens. It never
changes the backbone, and does not know what the rows are fine-tuned for.

Shapes: N items, L levels, K codes, D model width, V text vocabulary, E codebook width.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.semantic_ids import SidSpace
from training.backbone import Backbone
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class GroundingContext:
    """``codes_NL`` int64 and ``texts`` belong to the same N items, those that training may see.

    ``codebooks_LKE`` are the quantiser's vectors, float32, where there is a quantiser.
    """

    backbone: Backbone
    space: SidSpace
    codes_NL: NDArray[np.int64]
    texts: list[str]
    seed: int
    codebooks_LKE: NDArray[np.float32] | None = None

    @property
    def vocabulary_VD(self) -> Tensor:
        """The text vocabulary's input embeddings, [V, D], without the new tokens."""
        return self.backbone.input_rows[: self.space.first_token_id]

    @property
    def tied(self) -> bool:
        """Whether the output head is the input embedding."""
        return self.backbone.tied


@dataclass(frozen=True, slots=True)
class GroundingResult:
    """``sid_rows`` float32 [L * K, D]; ``sid_head`` the same for an untied head, None for a tied one; what it cost.

    ``start_rows`` are where an objective with steps began, None for one without.
    """

    sid_rows: Tensor
    sid_head: Tensor | None
    samples: int = 0
    steps: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    start_rows: Tensor | None = None


class Objective(Protocol):
    """Makes the rows."""

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """Ground all new tokens; a long objective keeps its state in ``state_file`` and resumes from it."""
        ...


class Clock:
    """Wall and process CPU seconds since it was made, plus what an interrupted run had already spent."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def add(self, wall: float, cpu: float) -> None:
        """Count seconds of an earlier run."""
        self._wall -= wall
        self._cpu -= cpu

    def read(self) -> tuple[float, float]:
        """``(wall, cpu)`` in seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def start_only(rows: Tensor, context: GroundingContext, clock: Clock, samples: int = 0) -> GroundingResult:
    """The result of an objective that has no steps: an untied head starts at the same rows."""
    wall, cpu = clock.read()
    head = None if context.tied else rows.clone()
    return GroundingResult(rows, head, samples=samples, wall_seconds=wall, cpu_seconds=cpu)


def vocabulary_radius(vocabulary_VD: Tensor) -> float:
    """The mean distance of the text vocabulary's rows from their mean: the scale a new row should have."""
    matrix = vocabulary_VD.float()
    return float((matrix - matrix.mean(0)).norm(dim=1).mean())


def noisy_mean(vocabulary_VD: Tensor, rows: int, noise: float, seed: int) -> Tensor:
    """The vocabulary's mean plus ``noise`` times its standard deviation, float32 [rows, D]."""
    generator = torch.Generator().manual_seed(seed)
    matrix = vocabulary_VD.float()
    spread = torch.randn(rows, matrix.shape[1], generator=generator) * matrix.std(0)
    return matrix.mean(0) + noise * spread
