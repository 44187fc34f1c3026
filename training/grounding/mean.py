"""The baseline: every new token starts at the mean of the vocabulary (GTI eq. 1), here with a little noise.

Without noise all rows of a level are equal, and only their different targets pull them apart.
"""

from dataclasses import dataclass
from pathlib import Path

from training.grounding.base import Clock, GroundingContext, GroundingResult, noisy_mean, start_only
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Mean:
    """``noise`` is a share of the vocabulary's standard deviation; 0 makes all rows equal."""

    noise: float = 0.01

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`; there is nothing to resume."""
        clock = Clock()
        rows = noisy_mean(context.vocabulary_VD, context.space.num_tokens, self.noise, context.seed)
        return start_only(rows, context, clock)
