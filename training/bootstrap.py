"""Bootstrap intervals over users: how far a mean, or a difference of two means on the same users, can be trusted.

Percentile intervals of seeded resamples; a paired difference, or ratio, keeps each user's two values
together.

Shapes: U users, S resamples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CHUNK = 200


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        """``[mean, low, high]`` for JSON."""
        return [self.mean, self.low, self.high]


def interval(value_U: NDArray[np.float64], *, samples: int, seed: int) -> Interval:
    """The mean over users with its 95 % bootstrap interval."""
    means_S = _resampled_means(value_U, samples, np.random.default_rng(seed))
    low, high = np.percentile(means_S, [2.5, 97.5])
    return Interval(float(value_U.mean()), float(low), float(high))


def paired_difference(
    ours_U: NDArray[np.float64], theirs_U: NDArray[np.float64], *, samples: int, seed: int
) -> Interval:
    """The mean of ours minus theirs, users resampled in pairs.

    Raises:
        ValueError: the two are not of the same users.
    """
    if ours_U.shape != theirs_U.shape:
        raise ValueError(f"paired values of {ours_U.shape} and {theirs_U.shape}")
    return interval(ours_U - theirs_U, samples=samples, seed=seed)


def ratio_interval(ours_U: NDArray[np.int64], theirs_U: NDArray[np.int64], *, samples: int, seed: int) -> Interval:
    """The sum of ours over the sum of theirs (counts; 1 at least), users resampled in pairs.

    Raises:
        ValueError: the two are not of the same users.
    """
    if ours_U.shape != theirs_U.shape:
        raise ValueError(f"paired values of {ours_U.shape} and {theirs_U.shape}")
    random, users = np.random.default_rng(seed), len(ours_U)
    # how often each user is drawn: two sums a resample, whatever the counts are
    drawn_SU = random.multinomial(users, np.full(users, 1 / max(users, 1)), samples)
    low, high = np.percentile((drawn_SU @ ours_U) / np.maximum(drawn_SU @ theirs_U, 1), [2.5, 97.5])
    return Interval(float(ours_U.sum() / max(theirs_U.sum(), 1)), float(low), float(high))


def _resampled_means(value_U: NDArray[np.float64], samples: int, random: np.random.Generator) -> NDArray[np.float64]:
    users = len(value_U)
    parts = []
    for start in range(0, samples, _CHUNK):
        chosen_SU = random.integers(0, users, (min(_CHUNK, samples - start), users))
        parts.append(value_U[chosen_SU].mean(1))
    return np.concatenate(parts)
