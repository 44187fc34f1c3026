"""Medians and ratios of figures that were measured in turns.

A ratio is taken inside each round and then the median of the rounds, so that what slows a whole round down cancels.
"""

from collections.abc import Sequence
from statistics import median


def middle(values: Sequence[float]) -> float:
    """The median.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("no values to take the median of")
    return float(median(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median over rounds of ``above[i] / below[i]``.

    Raises:
        ValueError: unequally many rounds, none, or a figure below is not positive.
    """
    if len(above) != len(below):
        raise ValueError(f"{len(above)} and {len(below)} rounds cannot be paired")
    if any(value <= 0 for value in below):
        raise ValueError(f"a ratio needs positive figures below, got {min(below)}")
    return middle([a / b for a, b in zip(above, below, strict=True)])


def spread(values: Sequence[float]) -> float:
    """Largest over smallest: 1.0 means that no round differed."""
    if not values or min(values) <= 0:
        raise ValueError("a spread needs positive values")
    return max(values) / min(values)
