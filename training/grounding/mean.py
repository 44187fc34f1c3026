"""The baseline: every new token starts at the mean of the vocabulary (GTI eq. 1), here with a little noise."""

from dataclasses import dataclass

from training.grounding.base import Clock, GroundingContext, GroundingResult, Progress, noisy_mean


@dataclass(frozen=True, slots=True)
class Mean:
    """``noise`` is a share of the vocabulary's standard deviation; 0 makes all rows equal."""

    noise: float = 0.01

    def ground(self, context: GroundingContext, progress: Progress | None = None) -> GroundingResult:
        """See `Objective.ground`."""
        clock = Clock()
        rows = noisy_mean(context.vocabulary_VD, context.space.num_tokens, self.noise, context.seed)
        head = None if context.tied else rows.clone()
        wall, cpu = clock.read()
        return GroundingResult(rows, head, wall_seconds=wall, cpu_seconds=cpu)
